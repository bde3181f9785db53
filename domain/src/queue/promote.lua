-- Moves due jobs of all queues to their lists of ready jobs.
-- KEYS in groups of four per queue: delayed_ms, retry_ms, apalis's scheduled, active
-- ARGV[1] most jobs to move per set   ARGV[2..] wake channel per queue
-- Returns {moved, full, wait}: `full` = 1 if a set had more that are due, `wait` = ms until the next is due or -1.
-- Bounded: apalis-redis 1.0 promotes without a bound and fails for ever once 8,000 are due; this runs before it does.
local most = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local moved, full, wait = 0, 0, -1
local function move(set, list, limit)
    local ids = redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%.0f', limit), 'LIMIT', 0, most)
    if #ids > 0 then
        redis.call('RPUSH', list, unpack(ids))
        redis.call('ZREM', set, unpack(ids))
        if #ids == most then full = 1 end
    end
    return #ids
end
for q = 0, #KEYS / 4 - 1 do
    local delayed, retry, scheduled, active = KEYS[q * 4 + 1], KEYS[q * 4 + 2], KEYS[q * 4 + 3], KEYS[q * 4 + 4]
    local count = move(delayed, active, now) + move(retry, active, now) + move(scheduled, active, tonumber(clock[1]))
    if count > 0 then redis.call('PUBLISH', ARGV[q + 2], count) end
    moved = moved + count
    for _, waiting in ipairs({delayed, retry}) do
        local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
        if first[2] then
            local left = math.max(tonumber(first[2]) - now, 0)
            if wait < 0 or left < wait then wait = left end
        end
    end
end
return {moved, full, wait}
