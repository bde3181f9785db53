-- Makes some buckets of one block show what Postgres has committed for one reservation, by compare-and-set on the
-- owner. Atomic because the picture, its version and the seat change must not differ.
-- KEYS    1: the block's version counter; 2..: seat buckets
-- ARGV    1: channel; 2: rule, take or release; 3: the reservation id; 4: the new status; 5: the bucket as JSON without
--         version and closing brace; 6: take: the new deadline, release: the deadline that has passed, ms or empty;
--         7: when the bucket vanishes, ms since the epoch by the server's clock, or empty
-- take    writes over the owner's own bucket only, and only forwards: gate, held, held longer, committed (held without
--         a deadline), sold. Whoever read Postgres long ago changes nothing. Whether a bucket that is not the owner's
--         is older than what the caller read cannot be told here: such buckets are counted, for the caller to heal
-- release writes over the owner's own bucket and an absent one only; a release because of a deadline leaves a bucket
--         alone whose deadline is later, or which has none any more: it was extended or paid for meanwhile
-- Returns {changed, version, not the owner's (take only)}
local rule, owner, status, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])
local foreign = 0

local function may_write(value)
  local readable, bucket = pcall(cjson.decode, value or '')
  if not readable or type(bucket) ~= 'table' or bucket.reservationId ~= owner then
    if rule == 'take' then
      foreign = foreign + 1
      return false
    end
    return not readable or type(bucket) ~= 'table'
  end
  -- A gate, from before the commit: what Postgres says comes after it.
  if not bucket.createdAt then return true end
  local deadline = tonumber(bucket.deadlineMs or '')
  if rule == 'release' then
    return not limit or (bucket.status == 'held' and deadline ~= nil and deadline <= limit)
  end
  if bucket.status ~= 'held' then return false end
  if status ~= 'held' then return true end
  return deadline ~= nil and (limit == nil or limit > deadline)
end

local seats = {}
for i = 2, #KEYS do
  if may_write(redis.call('GET', KEYS[i])) then seats[#seats + 1] = KEYS[i] end
end
if #seats == 0 then return {0, '0', foreign} end

if redis.call('EXISTS', KEYS[1]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local version = string.format('%.0f', redis.call('INCR', KEYS[1]))
local bucket = ARGV[5] .. ',"version":"' .. version .. '"}'
for i = 1, #seats do
  if ARGV[7] == '' then
    redis.call('SET', seats[i], bucket)
  else
    redis.call('SET', seats[i], bucket, 'PXAT', ARGV[7])
  end
end
local change = {version = version, status = status, seats = seats}
if rule == 'take' and limit then change.deadlineMs = ARGV[6] end
redis.call('PUBLISH', ARGV[1], cjson.encode(change))
return {#seats, version, foreign}
