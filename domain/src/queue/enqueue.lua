-- Enqueues jobs, each at most once by its id.
-- KEYS[1] data   KEYS[2] meta prefix   KEYS[3] active   KEYS[4] delayed_ms   KEYS[5] done_ms   KEYS[6] totals
-- ARGV[1] wake channel; then jobs in groups of five:
--   id, kind, envelope without its end, not_before_ms ("" = at once), repeat ("never" | "after_done")
-- Returns {added, known}. Repeatable: the same call again adds nothing.
-- Atomic, because data, state and position of a job must never be seen apart: a position without data kills workers.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local added, known, ready = 0, 0, 0
for i = 2, #ARGV, 5 do
    local id, kind, envelope, due, again = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
    if again == 'after_done' and redis.call('ZREM', KEYS[5], id) == 1 then
        redis.call('HDEL', KEYS[1], id)
        redis.call('UNLINK', KEYS[2] .. ':' .. id)
    end
    envelope = envelope .. ',"enqueued_ms":' .. string.format('%.0f', now) .. '}'
    if redis.call('HSETNX', KEYS[1], id, envelope) == 1 then
        -- attempts, max_attempts and status must exist: apalis-redis dies of a job that lacks one.
        redis.call('HSET', KEYS[2] .. ':' .. id, 'attempts', 0, 'max_attempts', 0, 'status', 'Pending', 'kind', kind,
            'enqueued_ms', string.format('%.0f', now), 'ready_ms', string.format('%.0f', math.max(due or 0, now)))
        if due and due > now then
            redis.call('ZADD', KEYS[4], due, id)
        else
            redis.call('RPUSH', KEYS[3], id)
            ready = ready + 1
        end
        added = added + 1
    else
        known = known + 1
    end
end
if added > 0 then redis.call('HINCRBY', KEYS[6], 'enqueued', added) end
if ready > 0 then redis.call('PUBLISH', ARGV[1], ready) end
return {added, known}
