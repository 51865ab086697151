-- Releases locks without regard to their owners, if their tokens are the expected ones.
-- KEYS: n locks.
-- ARGV: for each lock the expected token, as in the value.
-- Answers, one for each lock: 0 it was free; 1 released; the lock's token if that is not the
-- expected one; -1 if the key holds something that this library did not write.
local values = call('MGET', unpack(KEYS))
local answers = {}
for i, key in ipairs(KEYS) do
  local token = values[i] and token_of(values[i])
  if not token then
    answers[i] = 0
  elseif token == ARGV[i] then
    call('DEL', key)
    answers[i] = 1
  else
    answers[i] = string.find(token, '^%d+$') and token or -1
  end
end
return answers
