-- Hands locks over to their next owners, with higher tokens, if they are the caller's.
-- KEYS: n locks; the counters of their buckets.
-- ARGV: for each lock the caller's lease, the next owner, TTL in ms, holder and meta.
-- Answers, one for each lock: the new token; the result of the owner check if the caller does not
-- hold the lock; -3 if no higher token exists.
local n = #KEYS / 2
local now = clock()
local found = call('MGET', unpack(KEYS))
local answers, raised = {}, {}
for i = 1, n do
  local ours, next_owner, ttl, label = unpack(ARGV, i * 4 - 3, i * 4)
  local value, token = found[i], token_after(found[n + i], now)
  local state = check(value, ours)
  if value and owner_of(value) == next_owner then
    -- An earlier send of this request got the lock, and its reply was lost.
    call('PEXPIRE', KEYS[i], ttl)
    answers[i] = token_of(value)
  elseif state ~= 1 then
    answers[i] = state
  elseif not token then
    answers[i] = -3
  else
    call('SET', KEYS[i], lock_value(next_owner, token, now, label), 'PX', ttl)
    raised[#raised + 1], raised[#raised + 2] = KEYS[n + i], token
    answers[i] = token
  end
end
if raised[1] then
  call('MSET', unpack(raised))
end
return answers
