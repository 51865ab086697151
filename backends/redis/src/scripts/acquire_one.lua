-- Acquires a free lock with as few calls as possible.
-- KEYS: the lock; the counter of its bucket.
-- ARGV: owner, TTL in ms, holder and meta.
-- Answers as acquire_and_release.lua does for each lock.
local time = redis.call('TIME')
local now = time[1] .. string.sub('000000' .. time[2], -6)
local rest = ' ' .. now .. ' - ' .. ARGV[3]
-- The time is nearly always above the last token, so it is written first and checked after that.
if redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. now .. rest, 'PX', ARGV[2], 'NX') then
  local last = redis.pcall('SET', KEYS[2], now, 'GET')
  if not last or (type(last) == 'string' and (last < now or #last ~= 16)) then return now end
  if type(last) ~= 'string' then
    -- Anything else in the counter's place is no counter, and the counter starts at the current
    -- time.
    redis.call('SET', KEYS[2], now)
    return now
  end
  if last >= '9007199254740991' then
    redis.call('DEL', KEYS[1])
    redis.call('SET', KEYS[2], last)
    return -2
  end
  local token = string.format('%016.0f', last + 1)
  redis.call('SET', KEYS[2], token)
  redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. rest, 'PX', ARGV[2])
  return token
end
-- A lock's value is shorter than the 4326 bytes that are read here. A foreign value may be of any
-- size.
local value = redis.pcall('GETRANGE', KEYS[1], 0, 4325)
if type(value) ~= 'string' then return -1 end
if string.sub(value, 1, 32) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return string.sub(value, 34, 49)
end
return {value, redis.call('PTTL', KEYS[1])}
