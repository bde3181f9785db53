-- Counts one start of a job before it runs, so that a start which ends the process is counted as well.
-- KEYS[1] in-flight set of the worker   KEYS[2] the job's meta   KEYS[3] dead_ms   KEYS[4] totals
-- KEYS[5] suspects prefix
-- ARGV[1] id   ARGV[2] worker   ARGV[3] process   ARGV[4] attempts_max   ARGV[5] crashes_max
-- ARGV[6] 'together' | 'alone'   ARGV[7] the job's name among suspects   ARGV[8] seconds to keep suspects
-- ARGV[9] with how many starts that ended with their process a job is a suspect
-- Returns {verdict, attempts, starts}; verdict 'run' | 'lost' (another worker owns it now) | 'crashed' (now dead)
-- | 'suspect' (too many starts of it ended with their process: call again with 'alone', until no other suspect runs here).
-- Atomic with the check of the in-flight set: a worker that lost its lease must not start, nor count, anything.
-- Blame: a process that dies takes all its running jobs along. Most such deaths are nobody's doing (a machine, an
-- operator, a lack of memory), so after the first of them all simply run again, together. What was there a second time
-- is a suspect: it runs only while no other suspect, of any queue, runs in its process, and is written down under the
-- process. If that dies too, only the suspect that stands there can be dead for it; for the others, which were beside it,
-- it is no attempt, but it counts towards suspicion: one of them may be the cause, and must not stay beside the innocent.
local id, worker, meta = ARGV[1], ARGV[2], KEYS[2]
if redis.call('SISMEMBER', KEYS[1], id) == 0 then return {'lost', 0, 0} end
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
local function number(field) return tonumber(redis.call('HGET', meta, field) or '0') end
local running = redis.call('HGET', meta, 'running')
if running == worker then
    -- The answer to this same call was lost: it is one start, not two.
    return {'run', number('attempts'), number('starts')}
end
if running then
    -- The start before this one neither settled nor was given back: its process died.
    local suspects = KEYS[5] .. ':' .. (redis.call('HGET', meta, 'process') or '')
    redis.call('HDEL', meta, 'running', 'process')
    redis.call('HSET', meta, 'status', 'Pending')
    local crashes, starts = redis.call('HINCRBY', meta, 'crashes', 1), number('starts')
    if redis.call('EXISTS', suspects) == 1 and redis.call('SISMEMBER', suspects, ARGV[7]) == 0 then
        redis.call('HINCRBY', meta, 'attempts', -1)
    elseif crashes >= tonumber(ARGV[5]) or number('attempts') >= tonumber(ARGV[4]) then
        local last = redis.call('HGET', meta, 'reason')
        local reason = 'crashed: ' .. starts .. ' starts, ' .. crashes .. ' ended with their process'
        if last then reason = reason .. '; before that: ' .. last end
        redis.call('SREM', KEYS[1], id)
        redis.call('ZADD', KEYS[3], now, id)
        redis.call('HSET', meta, 'status', 'Killed', 'reason', reason, 'ended_ms', now)
        redis.call('HINCRBY', KEYS[4], 'dead', 1)
        return {'crashed', number('attempts'), starts}
    end
end
if number('crashes') >= tonumber(ARGV[9]) then
    if ARGV[6] ~= 'alone' then return {'suspect', 0, 0} end
    local suspects = KEYS[5] .. ':' .. ARGV[3]
    local others = redis.call('SCARD', suspects) - redis.call('SISMEMBER', suspects, ARGV[7])
    if others > 0 then return {'suspect', 0, 0} end
    redis.call('SADD', suspects, ARGV[7])
    redis.call('EXPIRE', suspects, ARGV[8])
end
local attempts = redis.call('HINCRBY', meta, 'attempts', 1)
local starts = redis.call('HINCRBY', meta, 'starts', 1)
redis.call('HSET', meta, 'status', 'Running', 'running', worker, 'process', ARGV[3], 'started_ms', now)
return {'run', attempts, starts}
