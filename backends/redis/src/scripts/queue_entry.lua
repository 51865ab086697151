-- Creates, renews or deletes one entry of a lock's store queue.
-- KEYS: the queue; the key of this entry; the waiter hint, which older versions read instead of the
-- queue.
-- ARGV: the waiter; the lease of an entry in ms; 1 to delete the entry, otherwise 0.
-- Answers the number of entries ahead, and the waiter right ahead or an empty text.
--
-- The queue is a text: for each entry, in order, the waiter and the end of its lease in ms. The key
-- of an entry exists for the waiter right behind it: the server tracks that key and pushes when it
-- is deleted. Renewals must not change the key, or they would wake that waiter for nothing.
local own, lease, leaves = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local now = math.floor(clock() / 1000)
local mine = string.format('%s %.0f;', own, now + lease)
local kept, ahead, before, found = {}, 0, '', false
for waiter, ends in string.gmatch(call('GET', KEYS[1]) or '', '(%x+) (%d+);') do
  if waiter == own then
    found = true
    if not leaves then
      kept[#kept + 1] = mine
    end
  elseif tonumber(ends) > now then
    kept[#kept + 1] = waiter .. ' ' .. ends .. ';'
    if not found then
      ahead, before = ahead + 1, waiter
    end
  end
end
-- The queue and the hint outlive every entry, and expire when no entry is renewed.
if leaves then
  call('DEL', KEYS[2])
else
  if not found then
    kept[#kept + 1] = mine
  end
  -- The entry's key has a long TTL and is rarely created again, because its expiry wakes the waiter
  -- behind it. The key of a waiter that died stays for that time.
  call('SET', KEYS[2], '', 'NX', 'PX', lease * 15)
  call('SET', KEYS[3], 1, 'PX', lease)
end
if kept[1] then
  call('SET', KEYS[1], table.concat(kept), 'PX', lease * 3)
else
  call('DEL', KEYS[1])
end
return {ahead, before}
