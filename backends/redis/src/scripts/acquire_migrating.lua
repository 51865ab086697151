-- The part before acquire_one.lua while the lock's slot migrates to another server.
-- A server serves a request only if it has all keys that the request names, and the key of a free
-- lock is on no server. So the request names the lock alone: the old server serves it if it has the
-- lock, otherwise it redirects to the new one.
-- KEYS: the lock.
-- ARGV: as in acquire_one.lua, then the counter of its bucket.
local KEYS = {KEYS[1], ARGV[4]}
-- The counter migrates like every key, if there is one. A second counter must not be created on
-- either server, or tokens could repeat.
if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.error_reply('TRYAGAIN the counter of this bucket has not come yet')
end
