-- Deletes records that have the expected versions.
-- KEYS: n records; the indexes of their buckets.
-- ARGV: for each record its name, and the expected version as in the value.
-- Answers, one for each record: 1 deleted; 0 not the expected version; -1 the key has no record of
-- this library.
local n = #KEYS / 2
local answers = {}
for i = 1, n do
  local name, expected = ARGV[i * 2 - 1], ARGV[i * 2]
  local found = try('GETRANGE', KEYS[i], 0, 15)
  if type(found) == 'table' then
    answers[i] = -1
  elseif found ~= expected then
    answers[i] = 0
  elseif type(try('ZREM', KEYS[n + i], name)) == 'table' then
    answers[i] = -1
  else
    call('DEL', KEYS[i])
    answers[i] = 1
  end
end
return answers
