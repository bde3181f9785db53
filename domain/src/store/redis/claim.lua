-- Claims deadlines that a bridge heard of, by moving their score one lease on: heard by N bridges, claimed once.
-- KEYS    1: the deadline index
-- ARGV    1: clock offset, ms; 2: lease, ms; 3..: reservation ids
-- Returns {now_ms, id and its deadline, ...} of those that are due and were claimed by nobody else
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local leased_until = string.format('%.0f', now + ARGV[2])
local claimed = {string.format('%.0f', now)}
for i = 3, #ARGV do
  local deadline = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if deadline and tonumber(deadline) <= now then
    redis.call('ZADD', KEYS[1], leased_until, ARGV[i])
    claimed[#claimed + 1] = ARGV[i]
    claimed[#claimed + 1] = deadline
  end
end
return claimed
