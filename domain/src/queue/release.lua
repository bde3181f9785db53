-- Gives back everything a worker has fetched and forgets the worker. Run after it has stopped, or after it has failed.
-- KEYS[1] in-flight set of the worker   KEYS[2] active   KEYS[3] workers   KEYS[4] the worker's metadata   KEYS[5] data
-- KEYS[6] meta prefix   KEYS[7] suspects of this process
-- ARGV[1] worker   ARGV[2] wake channel   ARGV[3] prefix of the names of this queue's suspects
-- Returns {given_back, dropped}. Repeatable. The set is emptied before the worker leaves `workers`: afterwards nobody
-- would look at it. A job without data or state is dropped: it would end every worker that fetches it.
local given, dropped = 0, 0
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    local meta = KEYS[6] .. ':' .. id
    if redis.call('HEXISTS', KEYS[5], id) == 1 and redis.call('HEXISTS', meta, 'status') == 1 then
        if redis.call('HGET', meta, 'running') == ARGV[1] then
            -- Interrupted, not failed: it does not count as an attempt.
            redis.call('HINCRBY', meta, 'attempts', -1)
            redis.call('HDEL', meta, 'running', 'process')
            redis.call('SREM', KEYS[7], ARGV[3] .. id)
        end
        redis.call('HSET', meta, 'status', 'Pending')
        redis.call('LPUSH', KEYS[2], id)
        given = given + 1
    else
        dropped = dropped + 1
    end
end
redis.call('DEL', KEYS[1], KEYS[4])
redis.call('ZREM', KEYS[3], ARGV[1])
if given > 0 then redis.call('PUBLISH', ARGV[2], given) end
return {given, dropped}
