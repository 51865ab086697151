-- Releases locks that are the caller's.
-- KEYS: n locks; also their store queues, if the caller asks whether others wait.
-- ARGV: for each lock the caller's lease.
-- Answers, one for each lock: 1 released; 2 released, and nobody waits; 3 released, and somebody
-- waits; the result of the owner check if the caller does not hold the lock.
local n = #ARGV
local values = call('MGET', unpack(KEYS, 1, n))
local ours, answers = {}, {}
for i = 1, n do
  answers[i] = check(values[i], ARGV[i])
  if answers[i] == 1 then
    ours[#ours + 1] = KEYS[i]
    -- A queue that cannot be read does not prevent the release.
    local waits = KEYS[n + i] and try('EXISTS', KEYS[n + i])
    answers[i] = type(waits) == 'number' and 2 + waits or 1
  end
end
if ours[1] then
  call('DEL', unpack(ours))
end
return answers
