-- Frees a lock if it is ours.
-- KEYS: the lock; where it is asked for, the line of those who wait.
-- ARGV: what its value must start with.
-- Answers as release.lua does for each lock.
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if KEYS[2] then return 2 + redis.call('EXISTS', KEYS[2]) end
return 1
