-- Frees locks that are ours.
-- KEYS: n locks; then, where it is asked for, n marks of those who wait.
-- ARGV: for each lock what its value must start with.
-- Answers, one for each lock: 0 it was not ours; 1 freed; 2 freed, and nobody waits; 3 freed, and somebody waits.
local n = #ARGV
local values = redis.call('MGET', unpack(KEYS, 1, n))
local free, answers = {}, {}
for i = 1, n do
  local value, ours = values[i], ARGV[i]
  if value and string.sub(value, 1, #ours) == ours then
    free[#free + 1] = KEYS[i]
    answers[i] = 1
    if #KEYS > n then
      answers[i] = 2 + redis.call('EXISTS', KEYS[n + i])
    end
  else
    answers[i] = 0
  end
end
if #free > 0 then
  redis.call('DEL', unpack(free))
end
return answers
