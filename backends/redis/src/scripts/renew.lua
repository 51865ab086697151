-- Renews leases of the caller. A lease that has ended stays ended.
-- KEYS: n locks.
-- ARGV: for each lock the start of its value, TTL in ms, the ticket's step (K keep, I issue, R
-- redeem), its nonce.
-- Answers, one for each lock: its token; the result of the owner check if the caller does not hold
-- the lock; -3 if the ticket was used or replaced.
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
      -- A server without free memory refuses SET, unless the script has written before. It never
      -- refuses PEXPIRE, so PEXPIRE comes first. Tickets must work without free memory too: the
      -- process that resumes a ticket can then release the lock, which frees memory.
      call('PEXPIRE', key, ttl)
      local ticket = step == 'I' and nonce or '-'
      call('SET', key, sub(value, 1, 67) .. ticket .. rest, 'PX', ttl, 'XX')
      answers[i] = token_of(value)
    end
  end
end
return answers
