-- A count over two windows, the last one weighted: KEYS[1], most units, milliseconds of a window, units
-- asked for. Answers whether they were taken, and the whole units left.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit = tonumber(ARGV[1])
local length = tonumber(ARGV[2])
local cost = tonumber(ARGV[3])
local window = math.floor(now / length)
local current = KEYS[1] .. ':' .. window
local counted = tonumber(redis.call('GET', current) or 0)
local before = tonumber(redis.call('GET', KEYS[1] .. ':' .. (window - 1)) or 0)
local used = counted + before * (1 - (now - window * length) / length)
if used + cost > limit then
    return {0, math.max(0, math.floor(limit - used))}
end
redis.call('INCRBY', current, cost)
if counted == 0 then
    redis.call('PEXPIRE', current, 2 * length)
end
return {1, math.floor(limit - used - cost)}
