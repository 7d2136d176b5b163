-- ARGV: now, from which queue on (a bound of ZRANGEBYLEX), how many queues are looked at. Answers the number of jobs, of
-- disabled ones, for each queue with unfinished runs: name, due, waiting, claimed, the earliest due time; and after which
-- queue to go on ('' at the end).
local P, call = KEYS[1], redis.call
local queues, names = {}, call('ZRANGEBYLEX', P .. 'queues', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
for _, queue in ipairs(names) do
  local due, waiting, earliest = 0, 0, false
  for _, priority in ipairs(call('ZRANGE', P .. 'levels:' .. queue, 0, -1)) do
    for _, kind in ipairs({'lane:', 'gated:'}) do
      local key = P .. kind .. priority .. ':' .. queue
      local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
      if first then
        due = due + call('ZCOUNT', key, '-inf', ARGV[1])
        waiting = waiting + call('ZCARD', key)
        if not earliest or tonumber(first) < tonumber(earliest) then earliest = first end
      end
    end
  end
  local claimed = call('ZCARD', P .. 'claimed:' .. queue)
  if waiting + claimed > 0 then queues[#queues + 1] = {queue, due, waiting, claimed, earliest} end
end
return {call('ZCARD', P .. 'jobs_named'), call('ZCARD', P .. 'disabled_named'), queues, #names == tonumber(ARGV[3]) and names[#names] or ''}
