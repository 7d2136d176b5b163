-- uses: shared_runs
-- Puts the next runs into the index by queue. ARGV: how many. Answers 1 if there are more.
local QUEUED = P .. 'queued'
local last = call('GET', QUEUED)
if last == '' then return 0 end
local ids = call('ZRANGEBYLEX', IDS, last and '(' .. last or '-', '+', 'LIMIT', 0, ARGV[1])
for place, row in ipairs(many('HMGET', RUNS, ids)) do
  if row then add(in_queue_key(read_run(row)[QUEUE]), 0, ids[place]) end
end
flush()
call('SET', QUEUED, #ids == tonumber(ARGV[1]) and ids[#ids] or '')
return #ids == tonumber(ARGV[1]) and 1 or 0
