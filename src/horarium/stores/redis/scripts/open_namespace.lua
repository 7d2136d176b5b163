-- ARGV: the version of the layout of this namespace, which the first to open it writes. Answers the one that is there, and
-- whether runs are to be put into the index by queue (`index_queues`): some of before there was one may be in none.
local P, call = KEYS[1], redis.call
call('SET', P .. 'layout', ARGV[1], 'NX')
if call('EXISTS', P .. 'ids') == 0 then call('SET', P .. 'queued', '') end
-- In which queues runs are claimed was not kept before.
if call('SET', P .. 'claimed_known', '', 'NX') then
  for _, queue in ipairs(call('ZRANGE', P .. 'queues', 0, -1)) do
    if call('EXISTS', P .. 'claimed:' .. queue) == 1 then call('ZADD', P .. 'claimed_in', 0, queue) end
  end
end
return {call('GET', P .. 'layout'), call('GET', P .. 'queued') == '' and 0 or 1}
