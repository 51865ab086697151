-- The part that every step's script starts with: the token rule, the value format and the owner
-- check. It runs no command.
-- A request names n locks or records, and its script answers a list of n. Further keys of theirs,
-- such as the counters of their buckets, follow in the same order: the i-th one is KEYS[n + i].
local call, try, sub = redis.call, redis.pcall, string.sub

-- The server's time in microseconds since 1970. Times, tokens and versions are texts of 16 digits,
-- which compare like the numbers they are.
local function clock()
  local time = call('TIME')
  return time[1] .. sub('000000' .. time[2], -6)
end

-- The token rule. `last` is the value of the counter, and the next token is above it: the time, or
-- one more than `last`. There is none when the counter has reached its end. Anything else in the
-- counter's place is no counter. All locks of one bucket in one request get the same token, which
-- is safe since their names differ. The same rule gives records their versions.
local function token_after(last, now)
  if not last or #last ~= 16 or last < now then return now end
  if last < '9007199254740991' then return string.format('%016.0f', last + 1) end
end

-- A lock's value, without a ticket.
local function lock_value(owner, token, now, label)
  return owner .. ' ' .. token .. ' ' .. now .. ' - ' .. label
end

local function owner_of(value) return sub(value, 1, 32) end
local function token_of(value) return sub(value, 34, 49) end

-- The owner check. `ours` is the start of the value of the caller's lock: the owner, or owner and
-- token. 1 the lock is the caller's; 0 no lock; -1 another owner's; -2 the owner's under another
-- token.
local function check(value, ours)
  if not value then return 0 end
  if sub(value, 1, #ours) == ours then return 1 end
  return owner_of(value) == owner_of(ours) and -2 or -1
end
