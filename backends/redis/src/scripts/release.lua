-- Releases locks that are the caller's.
-- KEYS: n locks; then, if the caller asks who waits, their n store queues.
-- ARGV: for each lock the start of its value.
-- Answers 1 if all were released and nothing more was asked; otherwise, one for each lock: 0 not
-- the caller's; 1 released; 2 released, and nobody waits; 3 released, and somebody waits.
local call, find = redis.call, string.find
local n = #ARGV
local look = #KEYS > n
local values = call('MGET', unpack(KEYS, 1, n))
local free, answers, freed = {}, {}, 0
for i = 1, n do
  local value = values[i]
  if value and find(value, ARGV[i], 1, true) == 1 then
    freed = freed + 1
    free[freed] = KEYS[i]
    local waits = look and redis.pcall('EXISTS', KEYS[n + i])
    answers[i] = type(waits) == 'number' and 2 + waits or 1
  else
    answers[i] = 0
  end
end
if freed > 0 then
  call('DEL', unpack(free))
end
return freed == n and not look and 1 or answers
