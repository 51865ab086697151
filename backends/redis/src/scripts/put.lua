-- Writes records that have the expected versions.
-- KEYS: n records; the m indexes of their buckets; the m counters of their buckets.
-- ARGV: m; for each record its name, the expected version as in the value ("" means absent), the
-- value, and the position of its bucket among the m.
-- Answers, one for each record: its new version; 0 not the expected version; -1 the key has no
-- record of this library; -2 the counter has reached its end.
local m = tonumber(ARGV[1])
local n = (#ARGV - 1) / 4
local call = redis.call
local time = call('TIME')
local now = time[1] .. string.sub('000000' .. time[2], -6)
local answers = {}
for i = 1, n do
  local a = i * 4 - 2
  local expected, b = ARGV[a + 1], tonumber(ARGV[a + 3])
  local found = redis.pcall('GETRANGE', KEYS[i], 0, 15)
  if type(found) == 'table' or (found ~= '' and not tonumber(found)) then
    answers[i] = -1
  elseif found ~= expected then
    answers[i] = 0
  else
    local counter = KEYS[n + m + b]
    -- Anything else in the counter's place is no counter, and the counter starts at the current
    -- time.
    local version = redis.pcall('GET', counter)
    if type(version) ~= 'string' or #version ~= 16 or version < now then
      version = now
    elseif version < '9007199254740991' then
      version = string.format('%016.0f', version + 1)
    else
      version = nil
    end
    -- A record that fails must leave nothing behind, and must not affect the others.
    if not version then
      answers[i] = -2
    elseif expected == '' and type(redis.pcall('ZADD', KEYS[n + b], 0, ARGV[a])) == 'table' then
      answers[i] = -1
    else
      call('SET', counter, version)
      call('SET', KEYS[i], version .. now .. ARGV[a + 2])
      answers[i] = version
    end
  end
end
return answers
