-- Releases a lock if it is the caller's.
-- KEYS: the lock; if the caller asks who waits, its store queue.
-- ARGV: the start of its value.
-- Answers as release.lua does for each lock.
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- A queue that cannot be read does not undo the release.
local waits = KEYS[2] and redis.pcall('EXISTS', KEYS[2])
return type(waits) == 'number' and 2 + waits or 1
