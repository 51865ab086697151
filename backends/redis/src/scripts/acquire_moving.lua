-- What comes before acquire_one.lua while the lock's slot is on its way to another server.
-- A request is served where all keys that it names are, and a lock that is free is nowhere. So it names the lock alone: that
-- is served where the lock is, and by the new server when the old one has said that it has none.
-- KEYS: the lock.
-- ARGV: as there, and the counter of its bucket.
local KEYS = {KEYS[1], ARGV[4]}
-- The counter comes by itself, or there has never been one. A second one must not be made, here or there.
if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.error_reply('TRYAGAIN the counter of this bucket has not come yet')
end
