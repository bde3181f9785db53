-- Gives back seats of one block whose reservations have expired, many reservations at once. What change.lua's release
-- does for one: each bucket by compare-and-set on its owner, one version and one seat change for all.
-- KEYS    1: the block's version counter; 2..: seat buckets
-- ARGV    1: channel; 2: the bucket of an available seat as JSON without version and closing brace; then two for each
--         bucket: the reservation that owned it, and its deadline that has passed, ms
-- A bucket that is absent or unreadable is written; another's is not, nor one whose deadline is later, or which has none
-- any more: it was extended or paid for meanwhile
-- Returns how many buckets were written
local seats = {}
for i = 2, #KEYS do
  local at = 3 + (i - 2) * 2
  local readable, bucket = pcall(cjson.decode, redis.call('GET', KEYS[i]) or '')
  local may_write = true
  if readable and type(bucket) == 'table' then
    local deadline = tonumber(bucket.deadlineMs or '')
    -- Without createdAt it is a gate, from before the commit.
    may_write = bucket.reservationId == ARGV[at] and (not bucket.createdAt
      or (bucket.status == 'held' and deadline ~= nil and deadline <= tonumber(ARGV[at + 1])))
  end
  if may_write then seats[#seats + 1] = KEYS[i] end
end
if #seats == 0 then return 0 end

if redis.call('EXISTS', KEYS[1]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local version = string.format('%.0f', redis.call('INCR', KEYS[1]))
local bucket = ARGV[2] .. ',"version":"' .. version .. '"}'
for i = 1, #seats do
  redis.call('SET', seats[i], bucket)
end
redis.call('PUBLISH', ARGV[1], cjson.encode({version = version, status = 'available', seats = seats}))
return #seats
