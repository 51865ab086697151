-- Takes free locks, for owners that differ from lock to lock.
-- KEYS: n locks, in the order of their buckets; the m counters of these buckets, in the same order; then, for those who
-- will wait, n marks that say so.
-- ARGV: m; TTL in ms and holder and meta, where they are the same for all, or two empty texts; the owners, 32 digits each,
-- as one text; for each lock TTL and holder and meta where they are not the same.
-- Answers one token when all were granted under the same one; otherwise, one for each lock: the token of a grant;
-- {value, TTL left} of a lock that somebody holds; -1 for a key that holds no lock of ours; -2 when the counter is used up.
--
-- Tokens and times are texts of 16 digits, which compare like the numbers they are. What one step grants in one bucket has
-- the same token: they are locks of different names.
local call, sub = redis.call, string.sub
local m, ttl, label, owners = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local shared = ttl ~= ''
local n = #owners / 32
local marks = #KEYS > n + m and n + m
local time = call('TIME')
local now = time[1] .. sub('000000' .. time[2], -6)
-- The time is nearly always above the last tokens. Where it is not, `tokens` says what is.
local tokens
local counters = call('MGET', unpack(KEYS, n + 1, n + m))
for c = 1, m do
  local last = counters[c]
  if last and last >= now and #last == 16 then
    tokens = tokens or {}
    tokens[c] = last < '9007199254740991' and string.format('%016.0f', last + 1)
  end
end
local rest = ' ' .. now .. ' ' .. now .. ' - ' .. label
local used, answers, granted, c = {}, {}, 0, 1
for i = 1, n do
  local key, owner, token = KEYS[i], sub(owners, i * 32 - 31, i * 32), now
  if not shared then
    ttl, label = ARGV[i * 2 + 3], ARGV[i * 2 + 4]
    rest = ' ' .. now .. ' ' .. now .. ' - ' .. label
  end
  local tail = rest
  if tokens then
    -- A lock's key starts as its counter's does.
    while sub(key, 1, #KEYS[n + c] - 1) ~= sub(KEYS[n + c], 1, -2) do
      c = c + 1
    end
    if tokens[c] ~= nil then
      token = tokens[c]
      tail = token and ' ' .. token .. ' ' .. now .. ' - ' .. label
    end
  end
  if token and call('SET', key, owner .. tail, 'PX', ttl, 'NX') then
    granted = granted + 1
    used[c] = true
    answers[i] = token
  else
    local value = redis.pcall('GET', key)
    if not value then
      answers[i] = -2
    elseif type(value) ~= 'string' then
      answers[i] = -1
    elseif sub(value, 1, 32) == owner then
      call('PEXPIRE', key, ttl)
      answers[i] = sub(value, 34, 49)
    else
      local left = call('PTTL', key)
      if marks and left > 0 then
        call('SET', KEYS[marks + i], 1, 'PX', left)
      end
      answers[i] = {value, left}
    end
  end
end
if granted > 0 then
  -- Raising a counter to the present time takes nothing away; one that is ahead is raised only for what it granted.
  local set = {}
  for c = 1, m do
    if not tokens or tokens[c] == nil or (tokens[c] and used[c]) then
      set[#set + 1] = KEYS[n + c]
      set[#set + 1] = tokens and tokens[c] or now
    end
  end
  call('MSET', unpack(set))
end
return granted == n and not tokens and now or answers
