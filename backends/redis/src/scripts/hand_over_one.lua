-- Hands a lock over to its next owner, with a higher token, if it is the caller's.
-- KEYS: the lock; the counter of its bucket.
-- ARGV: the start of its value; the next owner, TTL in ms, holder and meta.
-- Answers as hand_over.lua does for each lock.
local value = redis.pcall('GET', KEYS[1])
if not value then return 0 end
if type(value) ~= 'string' then return -1 end
local next_owner, ours = ARGV[2], ARGV[1]
if string.sub(value, 1, 32) == next_owner then
  -- The same request came before, and its reply was lost.
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return string.sub(value, 34, 49)
end
if string.sub(value, 1, #ours) ~= ours then
  return string.sub(value, 1, 32) == string.sub(ours, 1, 32) and -2 or -1
end
local time = redis.call('TIME')
local now = time[1] .. string.sub('000000' .. time[2], -6)
local token = now
-- The time is nearly always above the last token, so it is written first and checked after that.
local last = redis.pcall('SET', KEYS[2], now, 'GET')
if type(last) == 'string' and #last == 16 and last >= now then
  if last >= '9007199254740991' then
    redis.call('SET', KEYS[2], last)
    return -3
  end
  token = string.format('%016.0f', last + 1)
  redis.call('SET', KEYS[2], token)
elseif last and type(last) ~= 'string' then
  redis.call('SET', KEYS[2], now)
end
local rest = ' ' .. token .. ' ' .. now .. ' - ' .. ARGV[4]
redis.call('SET', KEYS[1], next_owner .. rest, 'PX', ARGV[3])
return token
