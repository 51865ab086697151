-- Gives up a place in the line of those who wait for a lock.
-- KEYS: the line, by ticket; the ends of its places' leases; the key of this place.
-- ARGV: the waiter.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[3])
