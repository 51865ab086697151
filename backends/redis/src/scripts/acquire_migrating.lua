-- The part before acquire.lua while the lock's slot migrates to another server.
-- A server serves a request only if it has all keys that the request names, and the key of a free
-- lock is on no server. So the request names the lock alone: the old server serves it if it has the
-- lock, otherwise it redirects to the new one.
-- KEYS: the lock.
-- ARGV: as in acquire.lua, then the counter of its bucket.
local KEYS = {KEYS[1], ARGV[4]}
if redis.call('EXISTS', KEYS[1]) == 1 then
  -- The counter may be on the other server. It is not needed: nobody is granted a lock that is
  -- held.
  KEYS[2] = KEYS[1]
elseif redis.call('EXISTS', KEYS[2]) == 0 then
  -- A counter of this bucket migrates like every other key and may still be on the old server. This
  -- server must not create a second counter, or tokens could repeat.
  return redis.error_reply('TRYAGAIN the counter of this bucket has not come yet')
end
