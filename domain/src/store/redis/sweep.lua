-- One look at the deadline index. Cheap when nothing is due; never touches Postgres (I7).
-- Atomic so that two sweeps cannot both claim one deadline.
-- KEYS    1: the deadline index; 2: the warm-up epoch
-- ARGV    1: clock offset, ms; 2: touch deadlines after this, ms; 3: grace, ms; 4: lease, ms; 5: the most of each
-- Returns {now_ms, epoch or '', {ids that just came due}, {id claimed, its deadline, ...}, touched up to, ms}: a claimed
-- id's score moves one lease on. Where more came due than the most, the next look goes on from what was touched last
-- A key still lives in the millisecond of its deadline, and a touch then is lost: so only what was due before it
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local text = string.format('%.0f', now)
local looked = string.format('%.0f', now - 1)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[2], looked, 'LIMIT', 0, ARGV[5])
if #due == tonumber(ARGV[5]) then
  looked = #due > 0 and redis.call('ZSCORE', KEYS[1], due[#due]) or ARGV[2]
end
local overdue = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[3]), 'WITHSCORES',
  'LIMIT', 0, ARGV[5])
local leased_until = string.format('%.0f', now + ARGV[4])
for i = 1, #overdue, 2 do
  redis.call('ZADD', KEYS[1], leased_until, overdue[i])
end
return {text, redis.call('GET', KEYS[2]) or '', due, overdue, looked}
