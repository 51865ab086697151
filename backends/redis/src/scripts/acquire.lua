-- Acquires free locks, each for its own owner.
-- KEYS: n locks; the counters of their buckets.
-- ARGV: for each lock the owner, TTL in ms, holder and meta.
-- Answers, one for each lock: the token of a grant; {value, remaining TTL} if another owner holds
-- the lock; -1 if the key holds something that this library did not write; -2 if no higher token
-- exists.
local n = #KEYS / 2
local now = clock()
local counters = call('MGET', unpack(KEYS, n + 1))
local answers, raised = {}, {}
for i = 1, n do
  local key, owner, ttl = KEYS[i], ARGV[i * 3 - 2], ARGV[i * 3 - 1]
  local token = token_after(counters[i], now)
  local value = token and lock_value(owner, token, now, ARGV[i * 3])
  if value and call('SET', key, value, 'PX', ttl, 'NX') then
    raised[#raised + 1], raised[#raised + 2] = KEYS[n + i], token
    answers[i] = token
  else
    -- A lock's value is shorter than the 4326 bytes that are read here. A foreign value may be of
    -- any type and size.
    local held = call_own('GETRANGE', key, 0, 4325)
    if held == '' then
      -- The key is missing, or has an empty foreign value.
      answers[i] = token and -1 or -2
    elseif not held then
      answers[i] = -1
    elseif owner_of(held) == owner then
      -- An earlier send of this request got the lock, and its reply was lost.
      call('PEXPIRE', key, ttl)
      answers[i] = token_of(held)
    else
      answers[i] = {held, call('PTTL', key)}
    end
  end
end
if raised[1] then
  call('MSET', unpack(raised))
end
return answers
