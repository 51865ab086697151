-- Hands locks over to their next owners, with higher tokens, if they are the caller's.
-- KEYS: n locks; the m counters of their buckets.
-- ARGV: m; for each lock the start of its value, the next owner, TTL in ms, holder and meta, and
-- the position of its counter among the m.
-- Answers, one for each lock: the new token; 0 no lock; -1 another owner's; -2 the owner's under
-- another token; -3 the counter has reached its end.
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
  local ours, next_owner, value = ARGV[a], ARGV[a + 1], values[i]
  if not value then
    answers[i] = 0
  elseif string.sub(value, 1, 32) == next_owner then
    -- The same request came before, and its reply was lost.
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
      local rest = ' ' .. token .. ' ' .. now .. ' - ' .. ARGV[a + 3]
      call('SET', KEYS[i], next_owner .. rest, 'PX', ARGV[a + 2])
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
