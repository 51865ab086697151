-- Renews leases of the caller. A lease that has ended stays ended.
-- KEYS: n locks; also the counters of their buckets, if the callers raise tokens.
-- ARGV: for each lock the caller's lease, TTL in ms, the new ticket: a nonce, a dash for none, or
-- an empty text to leave the ticket as it is; also the floor of the token, if the callers raise
-- tokens.
-- Answers, one for each lock: its token; the result of the owner check if the caller does not hold
-- the lock.
local n, size = #KEYS, 3
-- Two keys and four arguments for each lock, instead of one key and three arguments.
if #ARGV == #KEYS * 2 then n, size = n / 2, 4 end
local values = call('MGET', unpack(KEYS, 1, n))
local answers = {}
for i = 1, n do
  local key, value = KEYS[i], values[i]
  local ours, ttl, ticket, floor = unpack(ARGV, i * size - size + 1, i * size)
  local state = check(value, ours)
  if state ~= 1 then
    answers[i] = state
  else
    -- A server without free memory refuses SET, unless the script has written before. It never
    -- refuses PEXPIRE, so PEXPIRE comes first. Tickets must work without free memory too: the
    -- process that resumes a ticket can then release the lock, which frees memory.
    call('PEXPIRE', key, ttl)
    local token, rest = token_of(value), nil
    if floor then
      if token < floor then
        token, rest = floor, sub(value, 50)
      end
      -- The counter never expires, so the next grant is above the token, also after a release or
      -- an expiry. The counter is read here, because an earlier lock of this request may have
      -- raised it.
      local last = call('MGET', KEYS[n + i])[1]
      if not last or #last ~= 16 or last < token then
        call('SET', KEYS[n + i], token)
      end
    end
    if ticket ~= '' then
      rest = sub(value, 50, 67) .. ticket .. string.match(value, '^[%x-]+(.*)$', 68)
    end
    if rest then
      call('SET', key, sub(value, 1, 33) .. token .. rest, 'PX', ttl, 'XX')
    end
    answers[i] = token
  end
end
return answers
