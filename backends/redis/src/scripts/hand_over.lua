-- Gives locks that are ours to their next owners, with higher tokens.
-- KEYS: n locks; the m counters of their buckets.
-- ARGV: m; for each lock what its value must start with, the next owner, TTL in ms, holder and meta, and the place of its
-- counter among the m.
-- Answers, one for each lock: the new token; 0 nothing there; -1 somebody else's; -2 ours under another token; -3 when the
-- counter is used up.
--
-- Tokens and times are texts of 16 digits, which compare like the numbers they are.
local m = tonumber(ARGV[1])
local n = (#ARGV - 1) / 5
local call = redis.call
local time = call('TIME')
local now = time[1] .. string.sub('000000' .. time[2], -6)
local values = call('MGET', unpack(KEYS, 1, n))
local counters = call('MGET', unpack(KEYS, n + 1, n + m))
local last, counted, answers = {}, {}, {}
for i = 1, n do
  local a = i * 5 - 3
  local ours, heir, value = ARGV[a], ARGV[a + 1], values[i]
  if not value then
    answers[i] = 0
  elseif string.sub(value, 1, 32) == heir then
    -- Asked before, and never heard the answer.
    call('PEXPIRE', KEYS[i], ARGV[a + 2])
    answers[i] = string.sub(value, 34, 49)
  elseif string.sub(value, 1, #ours) ~= ours then
    answers[i] = string.sub(value, 1, 32) == string.sub(ours, 1, 32) and -2 or -1
  else
    local c = tonumber(ARGV[a + 4])
    local token = last[c] or counters[c]
    if not token or #token ~= 16 or token < now then
      token = now
    elseif token < '9007199254740991' then
      token = string.format('%016.0f', token + 1)
    else
      token = nil
    end
    if token then
      call('SET', KEYS[i], heir .. ' ' .. token .. ' ' .. now .. ' - ' .. ARGV[a + 3], 'PX', ARGV[a + 2])
      if not last[c] then
        counted[#counted + 1] = c
      end
      last[c] = token
    end
    answers[i] = token or -3
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
