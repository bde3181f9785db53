-- Writes buckets of one block as Postgres has them, each only if it is still as it was when Postgres was asked.
-- Atomic for the same reason as change.lua; the version in each bucket is the compare-and-set's witness.
-- KEYS    1: the block's version counter; 2..: seat buckets
-- ARGV    1: channel; then four for each bucket: the version seen, empty where it was absent; the bucket as JSON
--         without version and closing brace; when it vanishes, ms since the epoch, or empty; its status
-- Returns {changed, version}. Readers are told to read the block again: one message, however many seats.
local time = redis.call('TIME')
local writes = {}
for i = 2, #KEYS do
  local at = 2 + (i - 2) * 4
  local value = redis.call('GET', KEYS[i])
  local seen = ''
  if value then
    local readable, bucket = pcall(cjson.decode, value)
    if readable and type(bucket) == 'table' then seen = tostring(bucket.version or '?') else seen = '?' end
  end
  if seen == ARGV[at] then writes[#writes + 1] = {KEYS[i], ARGV[at + 1], ARGV[at + 2]} end
end
if #writes == 0 then return {0, '0'} end

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local version = string.format('%.0f', redis.call('INCR', KEYS[1]))
for _, write in ipairs(writes) do
  local bucket = write[2] .. ',"version":"' .. version .. '"}'
  if write[3] == '' then
    redis.call('SET', write[1], bucket)
  else
    redis.call('SET', write[1], bucket, 'PXAT', write[3])
  end
end
redis.call('PUBLISH', ARGV[1], cjson.encode({version = version, reload = true}))
return {#writes, version}
