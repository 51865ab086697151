-- The part that the script of every operation starts with: the rule for tokens and for the versions
-- of records, the value format, the owner check and the test for foreign keys. It only defines
-- functions.
-- KEYS starts with the keys of n locks or records, and a script answers with a list of n answers.
-- Further keys follow in the same order. For example, KEYS[n + i] can be the counter of the bucket
-- of KEYS[i].
local call, try, sub = redis.call, redis.pcall, string.sub

-- Runs a command on a key that somebody else may have written. Returns nil if the value has another
-- type. Any other refusal concerns the server or the user, and ends the script. A server refuses
-- for its own state (memory, replicas, disk, role) only the first write of a script, so nothing was
-- written then. A missing right can end a script halfway, and is an unknown outcome.
local function call_own(...)
  local answer = try(...)
  if type(answer) ~= 'table' then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then return call(...) end
end

-- Returns the server's time in microseconds since 1970. Times, tokens and versions are texts of 16
-- digits, so comparing the texts compares the numbers.
local function clock()
  local time = call('TIME')
  return time[1] .. sub('000000' .. time[2], -6)
end

-- The token rule. `last` is the value of the bucket's counter. The next token is the time if the
-- time is above `last`, otherwise `last` plus one. At the highest token the result is nil. If
-- `last` is no text of 16 digits, somebody else wrote the key, and the time is used. All locks of
-- one bucket in one request get the same token, which is safe because their names differ. Records
-- get their versions by the same rule.
local function token_after(last, now)
  if not last or #last ~= 16 or last < now then return now end
  if last < '9007199254740991' then return string.format('%016.0f', last + 1) end
end

-- Returns the value of a lock that has no ticket.
local function lock_value(owner, token, now, label)
  return owner .. ' ' .. token .. ' ' .. now .. ' - ' .. label
end

local function owner_of(value) return sub(value, 1, 32) end
local function token_of(value) return sub(value, 34, 49) end

-- The owner check. `ours` is the owner of the caller's lease, or the owner and the token, or the
-- owner, the token and the nonce of its ticket. The result is 1 if the caller holds the lock, 0 if
-- the lock is free, -1 if another owner holds it or the ticket was used or replaced, and -2 if the
-- same owner holds it with another token.
local function check(value, ours)
  if not value then return 0 end
  local start, nonce = sub(ours, 1, 49), sub(ours, 51)
  if sub(value, 1, #start) == start then
    -- After the owner, the token and the time comes the nonce of the issued ticket, or a dash.
    return (nonce == '' or sub(value, 68, 99) == nonce) and 1 or -1
  end
  return owner_of(value) == owner_of(ours) and -2 or -1
end
