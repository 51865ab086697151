-- Releases locks without regard to their owners, if their tokens are the expected ones.
-- KEYS: n locks.
-- ARGV: for each lock the expected token, as in the value.
-- Answers, one for each lock: 0 it was free; 1 released; the token of a lock that has another one;
-- -1 the key has no lock of this library.
local held = redis.call('MGET', unpack(KEYS))
local answers = {}
for i = 1, #KEYS do
  local value = held[i]
  if not value then
    answers[i] = 0
  else
    local token = string.sub(value, 34, 49)
    if token == ARGV[i] then
      redis.call('DEL', KEYS[i])
      answers[i] = 1
    else
      answers[i] = string.find(token, '^%d+$') and token or -1
    end
  end
end
return answers
