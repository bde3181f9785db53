-- Removes the oldest jobs of a history with all that belongs to them, one bounded slice.
-- KEYS[1] the history (done_ms or dead_ms)   KEYS[2] data   KEYS[3] meta prefix
-- ARGV[1] how many to keep at most   ARGV[2] for how many ms to keep them   ARGV[3] most jobs to remove
-- Returns how many were removed. Safe in any number at once.
local slice = tonumber(ARGV[3])
local ids = {}
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1])
if excess > 0 then
    ids = redis.call('ZRANGE', KEYS[1], 0, math.min(excess, slice) - 1)
end
if #ids < slice then
    local clock = redis.call('TIME')
    local limit = clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(ARGV[2])
    local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', limit), 'LIMIT', 0, slice)
    if #old > #ids then ids = old end
end
if #ids == 0 then return 0 end
redis.call('HDEL', KEYS[2], unpack(ids))
redis.call('ZREM', KEYS[1], unpack(ids))
local metas = {}
for i, id in ipairs(ids) do metas[i] = KEYS[3] .. ':' .. id end
redis.call('UNLINK', unpack(metas))
return #ids
