-- Takes the gate of some seats of one block for a few seconds, all or none.
-- Atomic because two buyers must not both find a seat available; short because it answers losers before Postgres.
-- KEYS    1: the block's version counter; 2..: seat buckets
-- ARGV    1: channel of the block's seat changes; 2: clock offset, ms; 3: gate, ms; 4: grace, ms; 5: reservation id;
--         6: the bucket as JSON without deadlineMs, version and closing brace
-- Returns {1, now_ms, version} or, with nothing written, {0, now_ms, index, status, index, status, ...} (index from 1)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
local conflicts = {0, string.format('%.0f', now)}
for i = 2, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value then
    local readable, bucket = pcall(cjson.decode, value)
    -- What cannot be read, or is absent, is left to Postgres: its claim decides.
    if readable and type(bucket) == 'table' and bucket.status ~= 'available' and bucket.reservationId ~= ARGV[5] then
      local deadline = tonumber(bucket.deadlineMs or '')
      if bucket.status ~= 'held' or deadline == nil or deadline > now then
        conflicts[#conflicts + 1] = i - 1
        conflicts[#conflicts + 1] = tostring(bucket.status)
      end
    end
  end
end
if #conflicts > 2 then return conflicts end

-- A counter that starts from the time in microseconds grows even across a loss of this Redis.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local version = string.format('%.0f', redis.call('INCR', KEYS[1]))
local deadline = string.format('%.0f', now + ARGV[3])
local bucket = ARGV[6] .. ',"deadlineMs":"' .. deadline .. '","version":"' .. version .. '"}'
local seats = {}
for i = 2, #KEYS do
  redis.call('SET', KEYS[i], bucket, 'PX', ARGV[3] + ARGV[4])
  seats[i - 1] = KEYS[i]
end
redis.call('PUBLISH', ARGV[1],
  cjson.encode({version = version, status = 'held', deadlineMs = deadline, seats = seats}))
return {1, string.format('%.0f', now), version}
