-- Writes records that have the expected versions.
-- KEYS: n records; the indexes of their buckets; the counters of their buckets.
-- ARGV: for each record its name, the expected version as in the value ("" means absent), and the
-- value.
-- Answers, one for each record: its new version; 0 if the version is not the expected one; -1 if
-- the key holds something that this library did not write; -2 if no higher version exists.
local n = #KEYS / 3
local now = clock()
local counters = call('MGET', unpack(KEYS, 2 * n + 1))
local answers = {}
for i = 1, n do
  local key, index, counter = KEYS[i], KEYS[n + i], KEYS[2 * n + i]
  local name, expected, value = unpack(ARGV, i * 3 - 2, i * 3)
  local version = token_after(counters[i], now)
  local found = call_own('GETRANGE', key, 0, 15)
  if not found or (found ~= '' and not tonumber(found)) then
    answers[i] = -1
  elseif found ~= expected then
    answers[i] = 0
  -- A record that is not written must change no key and must not affect the other records.
  elseif not version then
    answers[i] = -2
  elseif expected == '' and not call_own('ZADD', index, 0, name) then
    answers[i] = -1
  else
    call('MSET', counter, version, key, version .. now .. value)
    answers[i] = version
  end
end
return answers
