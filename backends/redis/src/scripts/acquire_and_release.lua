-- Acquires free locks, each for its own owner, and releases locks that are the caller's. All have
-- different names.
-- KEYS: n locks to acquire, in the order of their buckets; the m counters of these buckets, in the
-- same order; the locks to release.
-- ARGV: m; TTL in ms, and holder and meta, if they are the same for all, or two empty texts; the
-- owners, 32 digits each, as one text; otherwise for each lock to acquire its TTL, and holder and
-- meta; for each lock to release the start of its value.
-- Answers for the locks to acquire: one token if all were granted under the same one; otherwise,
-- one for each: the token of a grant; {value, TTL left} of a lock that somebody holds; -1 the key
-- has no lock of this library; -2 the counter has reached its end. If there are locks to release,
-- it answers two parts: this one, and the answer of release.lua.
--
-- Tokens and times are texts of 16 digits, which compare like the numbers they are. All locks that
-- one run of the script grants in one bucket get the same token, which is safe since their names
-- differ.
local call, sub, keys, argv = redis.call, string.sub, KEYS, ARGV
local m, ttl, label, owners = tonumber(argv[1]), argv[2], argv[3], argv[4]
local shared = ttl ~= ''
local n = #owners / 32
local time = call('TIME')
local now = time[1] .. sub('000000' .. time[2], -6)
-- The time is nearly always above the last tokens. `tokens` has the buckets where it is not.
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
-- The number of locks that were granted with the current time as token. Most often that is all.
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
      -- A lock's key and its counter's key start alike.
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
      -- A lock's value is shorter than the 4326 bytes that are read here. A foreign value may be of
      -- any size.
      local value = redis.pcall('GETRANGE', key, 0, 4325)
      if value == '' then
        -- The key is missing, or has an empty foreign value.
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
    -- Raising a counter to the current time is harmless. A counter ahead of the time is raised only
    -- if it granted something.
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
