-- ARGV: the version of the layout of this namespace, which the first to open it writes. Answers the one that is there, and
-- whether runs are to be put into the index by queue (`index_queues`), and jobs into those of sweeps (`index_jobs`): some of
-- before there were any may be in none.
local P, call = KEYS[1], redis.call
call('SET', P .. 'layout', ARGV[1], 'NX')
if call('EXISTS', P .. 'ids') == 0 then call('SET', P .. 'queued', '') end
if call('EXISTS', P .. 'jobs_named') == 0 then call('SET', P .. 'swept', '') end
-- In which queues runs are claimed was not kept before.
if call('SET', P .. 'claimed_known', '', 'NX') then
  for _, queue in ipairs(call('ZRANGE', P .. 'queues', 0, -1)) do
    if call('EXISTS', P .. 'claimed:' .. queue) == 1 then call('ZADD', P .. 'claimed_in', 0, queue) end
  end
end
local function is_left(mark) return call('GET', P .. mark) == '' and 0 or 1 end
return {call('GET', P .. 'layout'), is_left('queued'), is_left('swept')}
