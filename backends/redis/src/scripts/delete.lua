-- Deletes records that have the expected versions.
-- KEYS: n records; the indexes of their buckets.
-- ARGV: for each record its name, the expected version as in the value, and the position of its
-- index.
-- Answers, one for each record: 1 deleted; 0 not the expected version; -1 the key has no record of
-- this library.
local n = #ARGV / 3
local answers = {}
for i = 1, n do
  local a = i * 3 - 2
  local found = redis.pcall('GETRANGE', KEYS[i], 0, 15)
  if type(found) == 'table' then
    answers[i] = -1
  elseif found == '' or found ~= ARGV[a + 1] then
    answers[i] = 0
  elseif type(redis.pcall('ZREM', KEYS[n + tonumber(ARGV[a + 2])], ARGV[a])) == 'table' then
    answers[i] = -1
  else
    redis.call('DEL', KEYS[i])
    answers[i] = 1
  end
end
return answers
