-- Takes a place in the line of those who wait for a lock, renews it, or gives it up.
-- KEYS: the line; the key of this place; the mark that older versions look for instead of the line.
-- ARGV: the waiter; the lease of a place in ms; whether it is given up: 1 or 0.
-- Answers how many are ahead, and the waiter right ahead, or an empty text.
--
-- The line is a text: of each place, in order, the waiter and when its lease ends, in ms.
-- The key of a place is there for whoever is right behind it: the server tells them when it is
-- deleted. It must not change while the place is renewed, which would wake them for nothing.
local call, own, lease, leaves = redis.call, ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
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
-- Both keys outlast every place, and end by themselves when nobody renews one.
if leaves then
  call('DEL', KEYS[2])
else
  if not found then
    kept[#kept + 1] = mine
  end
  -- Seldom made anew: its end wakes whoever is behind, as if the place was given up. A waiter that
  -- died leaves it for so long.
  call('SET', KEYS[2], '', 'NX', 'PX', lease * 15)
  call('SET', KEYS[3], 1, 'PX', lease)
end
if kept[1] then
  call('SET', KEYS[1], table.concat(kept), 'PX', lease * 3)
else
  call('DEL', KEYS[1])
end
return {ahead, before}
