-- Makes some buckets of one block show what Postgres has committed for one reservation, by compare-and-set on the
-- owner. Atomic because the picture, its version and the seat change must not differ.
-- KEYS    1: the block's version counter; 2..: seat buckets
-- ARGV    1: channel; 2: clock offset, ms; 3: rule, take or release; 4: the reservation id, empty for an operator's
--         block; 5: the new status; 6: the bucket as JSON without version and closing brace; 7: deadline ms or empty;
--         8: when the bucket vanishes, ms since the epoch by the server's clock, or empty
-- take    writes over an absent, available or dead bucket and over the owner's own; never shortens the owner's
--         deadline (a gate's it may) and never turns its sold seat back to held: an older writer changes nothing
-- release writes over the owner's own bucket and an absent one only: a late release changes nothing
-- Returns {changed, version}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
local rule, owner, status, new_deadline = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[7])

local function may_write(value)
  if not value then return true end
  local readable, bucket = pcall(cjson.decode, value)
  if not readable or type(bucket) ~= 'table' then return true end
  local mine
  if owner == '' then mine = bucket.status == 'blocked' else mine = bucket.reservationId == owner end
  if rule == 'release' then return mine end
  local deadline = tonumber(bucket.deadlineMs or '')
  if mine then
    if bucket.status == status and deadline == new_deadline then return false end
    if bucket.status == 'sold' and status == 'held' then return false end
    -- Committed seats are held without a deadline: they never get one again.
    if bucket.status == 'held' and status == 'held' and deadline == nil then return false end
    -- A gate (a bucket without createdAt) promises nothing: a hold that is shorter than it shows its own deadline.
    return not (status == 'held' and bucket.status == 'held' and bucket.createdAt ~= nil and deadline ~= nil
      and new_deadline ~= nil and deadline > new_deadline)
  end
  return bucket.status == 'available' or (bucket.status == 'held' and deadline ~= nil and deadline <= now)
end

local seats = {}
for i = 2, #KEYS do
  if may_write(redis.call('GET', KEYS[i])) then seats[#seats + 1] = KEYS[i] end
end
if #seats == 0 then return {0, '0'} end

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local version = string.format('%.0f', redis.call('INCR', KEYS[1]))
local bucket = ARGV[6] .. ',"version":"' .. version .. '"}'
for i = 1, #seats do
  if ARGV[8] == '' then
    redis.call('SET', seats[i], bucket)
  else
    redis.call('SET', seats[i], bucket, 'PXAT', ARGV[8])
  end
end
local change = {version = version, status = status, seats = seats}
if ARGV[7] ~= '' then change.deadlineMs = ARGV[7] end
redis.call('PUBLISH', ARGV[1], cjson.encode(change))
return {#seats, version}
