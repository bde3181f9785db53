-- Takes a job off the dead list: to run again with all its attempts, or to be forgotten.
-- KEYS[1] dead_ms   KEYS[2] data   KEYS[3] the job's meta   KEYS[4] active   KEYS[5] totals
-- ARGV[1] id   ARGV[2] 'requeue' | 'discard'   ARGV[3] wake channel
-- Returns 1, or 0 if the job is not dead: two operators at once do it once.
local id = ARGV[1]
if redis.call('ZREM', KEYS[1], id) == 0 then return 0 end
if ARGV[2] == 'discard' then
    redis.call('HDEL', KEYS[2], id)
    redis.call('UNLINK', KEYS[3])
    redis.call('HINCRBY', KEYS[5], 'discarded', 1)
    return 1
end
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
redis.call('HSET', KEYS[3], 'attempts', 0, 'status', 'Pending', 'ready_ms', now)
redis.call('HDEL', KEYS[3], 'crashes', 'running', 'process', 'ended_ms')
redis.call('HINCRBY', KEYS[5], 'requeued', 1)
redis.call('RPUSH', KEYS[4], id)
redis.call('PUBLISH', ARGV[3], 1)
return 1
