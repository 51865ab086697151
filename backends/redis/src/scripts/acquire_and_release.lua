-- Takes free locks, for owners that differ from lock to lock, and frees locks that are ours. All have different names.
-- KEYS: n locks to take, in the order of their buckets; the m counters of these buckets, in the same order; the locks to
-- free.
-- ARGV: m; TTL in ms and holder and meta, where they are the same for all, or two empty texts; the owners, 32 digits each,
-- as one text; for each lock to take TTL and holder and meta where they are not the same; for each lock to free what its
-- value must start with.
-- Answers for the locks to take: one token when all were granted under the same one; otherwise, one for each: the token of
-- a grant; {value, TTL left} of a lock that somebody holds; -1 for a key that holds no lock of ours; -2 when the counter is
-- used up. Where there are locks to free it answers with two: this, and as release.lua does.
--
-- Tokens and times are texts of 16 digits, which compare like the numbers they are. What one step grants in one bucket has
-- the same token: they are locks of different names.
local call, sub, keys, argv = redis.call, string.sub, KEYS, ARGV
local m, ttl, label, owners = tonumber(argv[1]), argv[2], argv[3], argv[4]
local shared = ttl ~= ''
local n = #owners / 32
local time = call('TIME')
local now = time[1] .. sub('000000' .. time[2], -6)
-- The time is nearly always above the last tokens. Where it is not, `tokens` says what is.
local tokens
local counters = call('MGET', unpack(keys, n + 1, n + m))
local set = {}
for c = 1, m do
  local last = counters[c]
  if last and last >= now and #last == 16 then
    tokens = tokens or {}
    tokens[c] = last < '9007199254740991' and string.format('%016.0f', last + 1)
  end
  set[c * 2 - 1], set[c * 2] = keys[n + c], now
end
local rest = ' ' .. now .. ' ' .. now .. ' - ' .. label
-- How many of them were granted, all with this time as their token. Most often that is all of them.
local plain = 0
if shared and not tokens then
  for i = 1, n do
    if not call('SET', keys[i], sub(owners, i * 32 - 31, i * 32) .. rest, 'PX', ttl, 'NX') then
      break
    end
    plain = i
  end
end
local taken = now
if plain < n then
  taken = {}
  for i = 1, plain do
    taken[i] = now
  end
  local used, granted, c = {}, plain > 0, 1
  for i = plain + 1, n do
    local key, owner, token = keys[i], sub(owners, i * 32 - 31, i * 32), now
    if not shared then
      ttl, label = argv[i * 2 + 3], argv[i * 2 + 4]
      rest = ' ' .. now .. ' ' .. now .. ' - ' .. label
    end
    local tail = rest
    if tokens then
      -- A lock's key starts as its counter's does.
      while sub(key, 1, #keys[n + c] - 1) ~= sub(keys[n + c], 1, -2) do
        c = c + 1
      end
      if tokens[c] ~= nil then
        token = tokens[c]
        tail = token and ' ' .. token .. ' ' .. now .. ' - ' .. label
      end
    end
    if token and call('SET', key, owner .. tail, 'PX', ttl, 'NX') then
      granted = true
      used[c] = true
      taken[i] = token
    else
      -- A lock's value is no longer than this, less one byte. What somebody else put here may be of
      -- any size.
      local value = redis.pcall('GETRANGE', key, 0, 4325)
      if value == '' then
        -- No key, or an empty value of somebody else's.
        taken[i] = token and -1 or -2
      elseif type(value) ~= 'string' then
        taken[i] = -1
      elseif sub(value, 1, 32) == owner then
        call('PEXPIRE', key, ttl)
        taken[i] = sub(value, 34, 49)
      else
        taken[i] = {value, call('PTTL', key)}
      end
    end
  end
  if tokens then
    -- Raising a counter to the present time takes nothing away; one that is ahead is raised only for what it granted.
    set = {}
    for c = 1, m do
      if tokens[c] == nil or (tokens[c] and used[c]) then
        set[#set + 1] = keys[n + c]
        set[#set + 1] = tokens[c] or now
      end
    end
  end
  if not granted then
    set = {}
  end
end
if set[1] then
  call('MSET', unpack(set))
end
local before, starts = n + m, shared and 4 or 4 + 2 * n
local last = #keys - before
if last == 0 then
  return taken
end
local values = call('MGET', unpack(keys, before + 1, before + last))
local free, answers = {}, nil
for i = 1, last do
  local value = values[i]
  if value and string.find(value, argv[starts + i], 1, true) == 1 then
    free[#free + 1] = keys[before + i]
    if answers then
      answers[i] = 1
    end
  else
    if not answers then
      answers = {}
      for j = 1, i - 1 do
        answers[j] = 1
      end
    end
    answers[i] = 0
  end
end
if free[1] then
  call('DEL', unpack(free))
end
return {taken, answers or 1}
