-- Takes free locks, for owners that differ from lock to lock.
-- KEYS: n locks; the m counters of their buckets; then, for those who will wait, n marks that say so.
-- ARGV: m; TTL in ms and holder and meta, where they are the same for all, or two empty texts; for each lock its owner, the
-- place of its counter among the m, and TTL and holder and meta where they are not the same.
-- Answers, one for each lock: the token of a grant; {value, TTL left} of a lock that somebody holds; -1 for a key that
-- holds no lock of ours; -2 when the counter is used up.
--
-- Tokens and times are texts of 16 digits, which compare like the numbers they are.
local m = tonumber(ARGV[1])
local shared = ARGV[2] ~= ''
local each = shared and 2 or 4
local n = (#ARGV - 3) / each
local marks = #KEYS > n + m and n + m
local call = redis.call
local time = call('TIME')
local now = time[1] .. string.sub('000000' .. time[2], -6)
local ttl, label = ARGV[2], ARGV[3]
local values = call('MGET', unpack(KEYS, 1, n))
local counters
local last, counted, answers = {}, {}, {}
for i = 1, n do
  local a = 4 + (i - 1) * each
  local value, owner = values[i], ARGV[a]
  if not shared then
    ttl, label = ARGV[a + 2], ARGV[a + 3]
  end
  if not value then
    -- Not read when everything is held.
    counters = counters or call('MGET', unpack(KEYS, n + 1, n + m))
    local c = tonumber(ARGV[a + 1])
    local token = last[c] or counters[c]
    if not token or #token ~= 16 or token < now then
      token = now
    elseif token < '9007199254740991' then
      token = string.format('%016.0f', token + 1)
    else
      token = nil
    end
    if not token then
      answers[i] = -2
    elseif call('SET', KEYS[i], owner .. ' ' .. token .. ' ' .. now .. ' - ' .. label, 'PX', ttl, 'NX') then
      if not last[c] then
        counted[#counted + 1] = c
      end
      last[c] = token
      answers[i] = token
    else
      answers[i] = -1
    end
  elseif string.sub(value, 1, 32) == owner then
    call('PEXPIRE', KEYS[i], ttl)
    answers[i] = string.sub(value, 34, 49)
  else
    local left = call('PTTL', KEYS[i])
    if marks and left > 0 then
      call('SET', KEYS[marks + i], 1, 'PX', left)
    end
    answers[i] = {value, left}
  end
end
if #counted > 0 then
  local set = {}
  for i = 1, #counted do
    set[i * 2 - 1] = KEYS[n + counted[i]]
    set[i * 2] = last[counted[i]]
  end
  call('MSET', unpack(set))
end
return answers
