-- Walks up the names for a bounded stretch. ARGV: from which name on (a bound of ZRANGEBYLEX), how many are looked at, and
-- the cursor beyond which a job's must lie, or '' for jobs that keep a number of runs. Answers rows of those that may be
-- asked for, and from which name to go on ('' at the end).
--
-- No index is kept for this: code of the release before would not keep it. What is looked for is taken from the text of
-- the definition, whose keys come in a fixed order: of keys of one name the job's own is the last, those before it belong to
-- what its owner gave, and inside of a text the quotes of a key would be escaped. The caller reads what is found.
local P, call = KEYS[1], redis.call
local beyond = tonumber(ARGV[3])
local names = call('ZRANGEBYLEX', P .. 'jobs_named', ARGV[1], '+', 'LIMIT', 0, ARGV[2])
if #names == 0 then return {{}, ''} end
local found = {}
for _, row in ipairs(call('HMGET', P .. 'jobs', unpack(call('HMGET', P .. 'names', unpack(names))))) do
  if beyond then
    local cursor = row:match('.*"planned_until":(%-?%d+)')
    if tonumber(cursor or 0) >= beyond then found[#found + 1] = row end
  elseif row:find('"runs_max":%d') then
    found[#found + 1] = row
  end
end
return {found, #names == tonumber(ARGV[2]) and names[#names] or ''}
