-- Lists the commands that locks and records need and that the user may not run. It changes nothing.
-- ARGV: a key of the store; 1 for a server of a cluster.
-- Answers with two lists: the denied commands, and the commands that the server does not know
-- because they were renamed. Before Redis 7.0 a server cannot check rights, and the answer is nil.
if not redis.acl_check_cmd then return false end
local key = ARGV[1]
local commands = {
  {'TIME'}, {'GET', key}, {'SET', key, ''}, {'MGET', key}, {'MSET', key, ''}, {'DEL', key},
  {'EXISTS', key}, {'GETRANGE', key, '0', '1'}, {'PEXPIRE', key, '1'}, {'PTTL', key},
  {'SCAN', '0'}, {'ZADD', key, '0', ''}, {'ZREM', key, ''}, {'ZRANGEBYLEX', key, '-', '+'},
  {'EVALSHA', '', '1', key}, {'CLIENT', 'TRACKING', 'ON'},
  {'CLIENT', 'CACHING', 'YES'}
}
if ARGV[2] == '1' then
  commands[#commands + 1] = {'CLUSTER', 'SLOTS'}
  commands[#commands + 1] = {'ASKING'}
end
local denied, unknown = {}, {}
for _, command in ipairs(commands) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
  if not known or not allowed then
    local group = command[1] == 'CLIENT' or command[1] == 'CLUSTER'
    local list = known and denied or unknown
    list[#list + 1] = group and command[1] .. '|' .. command[2] or command[1]
  end
end
return {denied, unknown}
