-- uses: shared_runs, shared_jobs, shared_present, shared_listing
-- Walks up the names, by the rarest of the labels that are asked for or those of disabled jobs, for a bounded stretch.
-- ARGV: from which name on and up to which (bounds of ZRANGEBYLEX), how many are wanted, how many are looked at, `enabled`
-- and `finished` (see `matching`), then the labels (key, value, key, value...). Answers the rows found, and from which name
-- to go on ('' at the end).
local wanted, stretch, sets = tonumber(ARGV[3]), tonumber(ARGV[4]), sets_of({unpack(ARGV, 7)})
local index = table.remove(sets, 1) or P .. 'jobs_named'
if (ARGV[5] == '0' or ARGV[6] == '1') and call('ZCARD', DISABLED) < call('ZCARD', index) then
  sets[#sets + 1] = index
  index = DISABLED
end
local names = call('ZRANGEBYLEX', index, ARGV[1], ARGV[2], 'LIMIT', 0, stretch)
local found, last = matching(names, wanted, ARGV[5], ARGV[6], sets)
return rows_until(found, last or #names == stretch and names[stretch] or '')
