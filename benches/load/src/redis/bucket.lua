-- A token bucket: KEYS[1], most tokens, milliseconds in which one comes back, tokens asked for.
-- Answers whether they were taken, and the whole tokens left.
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local capacity = tonumber(ARGV[1])
local interval = tonumber(ARGV[2])
local cost = tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = capacity
if state[1] then
    tokens = math.min(capacity, tonumber(state[1]) + math.max(0, now - tonumber(state[2])) / interval)
end
local allowed = 0
if tokens >= cost then
    tokens = tokens - cost
    allowed = 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) * interval) + 1)
return {allowed, math.floor(tokens)}
