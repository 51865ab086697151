-- Renews locks that are the caller's. It never creates or revives one.
-- KEYS: n locks.
-- ARGV: for each lock the start of its value, TTL in ms, the ticket's step (K keep, I issue, R
-- redeem), its nonce.
-- Answers, one for each lock: its token; what the owner check says if the lock is not the caller's;
-- -3 the ticket was used or replaced.
local values = call('MGET', unpack(KEYS))
local answers = {}
for i, key in ipairs(KEYS) do
  local ours, ttl, step, nonce = unpack(ARGV, i * 4 - 3, i * 4)
  local value = values[i]
  local state = check(value, ours)
  if state ~= 1 then
    answers[i] = state
  elseif step == 'K' then
    call('PEXPIRE', key, ttl)
    answers[i] = token_of(value)
  else
    -- After the owner, the token and the time comes the nonce of the issued ticket, or a dash.
    local issued, rest = string.match(value, '^([%x-]+)(.*)$', 68)
    if step == 'R' and issued ~= nonce then
      answers[i] = -3
    else
      -- A server without memory refuses SET, unless the script has written before; it never refuses
      -- PEXPIRE. Tickets must work then, because releases free memory.
      call('PEXPIRE', key, ttl)
      local ticket = step == 'I' and nonce or '-'
      call('SET', key, sub(value, 1, 67) .. ticket .. rest, 'PX', ttl, 'XX')
      answers[i] = token_of(value)
    end
  end
end
return answers
