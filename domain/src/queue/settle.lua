-- Acknowledges a job and puts it where its verdict says, in one step: a crash can fall before or after, never between.
-- KEYS[1] in-flight set of the worker   KEYS[2] the job's meta   KEYS[3] delayed_ms   KEYS[4] done_ms
-- KEYS[5] dead_ms   KEYS[6] totals   KEYS[7] suspects of this process   KEYS[8] retry_ms
-- ARGV[1] id   ARGV[2] verdict: 'done' | 'retry' | 'later' | 'unstarted' | 'never'   ARGV[3] wait in ms
-- ARGV[4] due in ms since 1970, or '' (later; wins over the wait)   ARGV[5] attempts_max   ARGV[6] reason
-- ARGV[7] the job's name among suspects
-- Returns 'done' | 'waiting' | 'dead' | 'lost'. 'lost' changes nothing: the job is no longer this worker's.
local id, verdict = ARGV[1], ARGV[2]
if redis.call('SREM', KEYS[1], id) == 0 then return 'lost' end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = string.format('%.0f', now)
redis.call('HDEL', KEYS[2], 'running', 'process')
redis.call('SREM', KEYS[7], ARGV[7])
local function count(what)
    redis.call('HINCRBY', KEYS[6], what, 1)
    -- Ended jobs by day, a month of them.
    local day = math.floor(now / 86400000)
    if redis.call('HINCRBY', KEYS[6], 'day:' .. day, 1) == 1 then
        redis.call('HDEL', KEYS[6], 'day:' .. (day - 30))
    end
end
if verdict == 'done' then
    redis.call('ZADD', KEYS[4], stamp, id)
    redis.call('HSET', KEYS[2], 'status', 'Done', 'ended_ms', stamp)
    redis.call('HDEL', KEYS[2], 'reason')
    count('done')
    return 'done'
end
if verdict ~= 'unstarted' then redis.call('HSET', KEYS[2], 'reason', ARGV[6]) end
local attempts = tonumber(redis.call('HGET', KEYS[2], 'attempts') or '0')
if verdict == 'never' or (verdict == 'retry' and attempts >= tonumber(ARGV[5])) then
    redis.call('ZADD', KEYS[5], stamp, id)
    redis.call('HSET', KEYS[2], 'status', 'Killed', 'ended_ms', stamp)
    count('dead')
    return 'dead'
end
local due = tonumber(ARGV[4]) or (now + tonumber(ARGV[3]))
local status, waiting = 'Failed', KEYS[8]
if verdict == 'unstarted' then
    status, waiting = 'Pending', KEYS[3]
elseif verdict == 'later' then
    status, waiting = 'Pending', KEYS[3]
    redis.call('HINCRBY', KEYS[2], 'attempts', -1)
else
    redis.call('HINCRBY', KEYS[6], 'retried', 1)
end
due = string.format('%.0f', due)
redis.call('ZADD', waiting, due, id)
redis.call('HSET', KEYS[2], 'status', status, 'ready_ms', due)
return 'waiting'
