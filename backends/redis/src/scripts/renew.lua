-- Renews leases of the caller. A lease that has ended stays ended.
-- KEYS: n locks.
-- ARGV: for each lock the caller's lease, TTL in ms, the new ticket: a nonce, a dash for none, or
-- an empty text to leave the ticket as it is.
-- Answers, one for each lock: its token; the result of the owner check if the caller does not hold
-- the lock.
local values = call('MGET', unpack(KEYS))
local answers = {}
for i, key in ipairs(KEYS) do
  local ours, ttl, ticket = unpack(ARGV, i * 3 - 2, i * 3)
  local value = values[i]
  local state = check(value, ours)
  if state ~= 1 then
    answers[i] = state
  else
    -- A server without free memory refuses SET, unless the script has written before. It never
    -- refuses PEXPIRE, so PEXPIRE comes first. Tickets must work without free memory too: the
    -- process that resumes a ticket can then release the lock, which frees memory.
    call('PEXPIRE', key, ttl)
    if ticket ~= '' then
      local rest = string.match(value, '^[%x-]+(.*)$', 68)
      call('SET', key, sub(value, 1, 67) .. ticket .. rest, 'PX', ttl, 'XX')
    end
    answers[i] = token_of(value)
  end
end
return answers
