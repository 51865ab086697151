-- Frees a lock if it is ours.
-- KEYS: the lock; where it is asked for, the line of those who wait.
-- ARGV: what its value must start with.
-- Answers as release.lua does for each lock.
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- What could not be looked at does not undo the release.
local waits = KEYS[2] and redis.pcall('EXISTS', KEYS[2])
return type(waits) == 'number' and 2 + waits or 1
