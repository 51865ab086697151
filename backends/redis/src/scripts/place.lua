-- Takes a place in the line of those who wait for a lock, or renews it.
-- KEYS: the line, by ticket; the ends of its places' leases; the key of this place.
-- ARGV: the waiter, 32 digits; the lease of a place in ms.
-- Answers how many are ahead, and the waiter right ahead, or an empty text.
--
-- The key of a place is there for whoever is right behind it: the server tells them when it is
-- deleted. It must not change while the place is renewed, which would wake them for nothing.
local call, line, leases, place = redis.call, KEYS[1], KEYS[2], KEYS[3]
local waiter, lease = ARGV[1], tonumber(ARGV[2])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local dead = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)
if dead[1] then
  call('ZREM', line, unpack(dead))
  call('ZREM', leases, unpack(dead))
end
call('ZADD', line, 'NX', time[1] * 1000000 + time[2], waiter)
call('ZADD', leases, now + lease, waiter)
call('SET', place, '', 'NX', 'PX', lease * 10)
call('PEXPIRE', line, lease * 2)
call('PEXPIRE', leases, lease * 2)
local ahead = call('ZRANK', line, waiter)
local next = ahead > 0 and call('ZRANGE', line, ahead - 1, ahead - 1)[1]
return {ahead, next or ''}
