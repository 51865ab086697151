-- Renews locks that are the caller's. It never creates or revives one.
-- KEYS: n locks.
-- ARGV: for each lock the start of its value, TTL in ms, the ticket's step (K keep, I issue, R
-- redeem), its nonce.
-- Answers, one for each lock: its token; 0 no lock; -1 another owner's; -2 the owner's under
-- another token; -3 the ticket was used or replaced.
local n = #ARGV / 4
local held = redis.call('MGET', unpack(KEYS, 1, n))
local answers = {}
for i = 1, n do
  local a = i * 4 - 3
  local ours, ttl, step, nonce = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local value = held[i]
  if not value then
    answers[i] = 0
  elseif string.sub(value, 1, #ours) ~= ours then
    answers[i] = string.sub(value, 1, 32) == string.sub(ours, 1, 32) and -2 or -1
  else
    answers[i] = string.sub(value, 34, 49)
    if step == 'K' then
      redis.call('PEXPIRE', KEYS[i], ttl)
    else
      -- After the owner, the token and the time comes the nonce of the issued ticket, or a dash.
      local out, rest = string.match(value, '^([%x-]+)(.*)$', 68)
      if step == 'I' then
        out = nonce
      elseif out == nonce then
        out = '-'
      else
        out = nil
        answers[i] = -3
      end
      if out then
        -- A server without memory refuses SET, unless the script has written before; it never
        -- refuses PEXPIRE. Tickets must work then, because releases free memory.
        redis.call('PEXPIRE', KEYS[i], ttl)
        redis.call('SET', KEYS[i], string.sub(value, 1, 67) .. out .. rest, 'PX', ttl, 'XX')
      end
    end
  end
end
return answers
