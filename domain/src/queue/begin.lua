-- Counts one start of a job before it runs, so that a start which ends the process is counted as well.
-- KEYS[1] in-flight set of the worker   KEYS[2] the job's meta   KEYS[3] dead_ms   KEYS[4] totals
-- ARGV[1] id   ARGV[2] worker   ARGV[3] attempts_max   ARGV[4] crashes_max
-- Returns {verdict, attempts, starts}; verdict 'run' | 'lost' (another worker owns it now) | 'crashed' (now dead).
-- Atomic with the check of the in-flight set: a worker that lost its lease must not start, nor count, anything.
local id, worker = ARGV[1], ARGV[2]
if redis.call('SISMEMBER', KEYS[1], id) == 0 then return {'lost', 0, 0} end
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
local attempts = tonumber(redis.call('HGET', KEYS[2], 'attempts') or '0')
local starts = tonumber(redis.call('HGET', KEYS[2], 'starts') or '0')
if redis.call('HEXISTS', KEYS[2], 'running') == 1 then
    -- The start before this one neither settled nor was given back: its process died.
    local crashes = redis.call('HINCRBY', KEYS[2], 'crashes', 1)
    if crashes >= tonumber(ARGV[4]) or attempts >= tonumber(ARGV[3]) then
        local last = redis.call('HGET', KEYS[2], 'reason')
        local reason = 'crashed: ' .. starts .. ' starts, ' .. crashes .. ' ended with their process'
        if last then reason = reason .. '; before that: ' .. last end
        redis.call('SREM', KEYS[1], id)
        redis.call('ZADD', KEYS[3], now, id)
        redis.call('HSET', KEYS[2], 'status', 'Killed', 'reason', reason, 'ended_ms', now)
        redis.call('HDEL', KEYS[2], 'running')
        redis.call('HINCRBY', KEYS[4], 'dead', 1)
        return {'crashed', attempts, starts}
    end
end
attempts = redis.call('HINCRBY', KEYS[2], 'attempts', 1)
starts = redis.call('HINCRBY', KEYS[2], 'starts', 1)
redis.call('HSET', KEYS[2], 'status', 'Running', 'running', worker, 'started_ms', now)
return {'run', attempts, starts}
