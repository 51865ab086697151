-- Deletes records that have the expected versions.
-- KEYS: n records; the indexes of their buckets.
-- ARGV: for each record its name, and the expected version as in the value.
-- Answers, one for each record: 1 deleted; 0 not the expected version; -1 the key has no record of
-- this library.
local n = #KEYS / 2
local answers = {}
for i = 1, n do
  local name, expected = ARGV[i * 2 - 1], ARGV[i * 2]
  local found = call_own('GETRANGE', KEYS[i], 0, 15)
  if not found then
    answers[i] = -1
  elseif found ~= expected then
    answers[i] = 0
  elseif not call_own('ZREM', KEYS[n + i], name) then
    answers[i] = -1
  else
    call('DEL', KEYS[i])
    answers[i] = 1
  end
end
return answers
