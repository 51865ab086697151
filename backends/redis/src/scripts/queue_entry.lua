-- Creates, renews or deletes one entry of a lock's store queue.
-- KEYS: the queue; the key of this entry.
-- ARGV: the id of the waiter; how long the entry lasts, in ms; 1 to delete the entry, otherwise 0;
-- the label of the waiter, for people.
-- Answers the number of entries ahead, the waiter right ahead or an empty text, and the time in ms
-- until all entries ahead have ended, unless one of them is renewed.
--
-- The queue is a text: for each entry, in order, the id of the waiter and the end of the entry in
-- ms. The key of an entry serves the waiter right behind: the server tracks the key for that waiter
-- and pushes when the key is deleted. The value of the key is the label, which `inspect` shows. A
-- renewal must not change the key, because each change would wake the waiter behind although
-- nothing happened.
--
-- An entry that ends later than a whole lease from now was written before the server's clock went
-- back. Its waiter may be dead, so the entry is dropped; a living waiter joins again.
local own, lease, leaves = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local now = math.floor(clock() / 1000)
local mine = string.format('%s %.0f;', own, now + lease)
local kept, ahead, before, last_end, found = {}, 0, '', now, false
for waiter, ends in string.gmatch(call('GET', KEYS[1]) or '', '(%x+) (%d+);') do
  if waiter == own then
    found = true
    if not leaves then
      kept[#kept + 1] = mine
    end
  elseif tonumber(ends) > now and tonumber(ends) <= now + lease then
    kept[#kept + 1] = waiter .. ' ' .. ends .. ';'
    if not found then
      ahead, before = ahead + 1, waiter
      last_end = math.max(last_end, tonumber(ends))
    end
  end
end
if leaves then
  call('DEL', KEYS[2])
else
  if not found then
    kept[#kept + 1] = mine
  end
  -- The entry's key has a long TTL, because its expiry wakes the waiter behind. So the key of a
  -- waiter that died exists until the end of that TTL.
  call('SET', KEYS[2], ARGV[4], 'NX', 'PX', lease * 15)
end
if kept[1] then
  -- The queue outlives every entry, and expires when no entry is renewed.
  call('SET', KEYS[1], table.concat(kept), 'PX', lease * 3)
else
  call('DEL', KEYS[1])
end
return {ahead, before, last_end - now}
