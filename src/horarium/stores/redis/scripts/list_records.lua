-- uses: shared_reading
-- Walks the names between two bounds (as ZRANGEBYLEX has them) for a bounded stretch, along the first label if there is
-- any. ARGV: lower bound, upper bound, 1 to walk down, how many are looked at; labels (key, value ...). Answers the
-- names found, their rows, and the last name that was looked at ('' at the end). It ends with as much as a call brings, too.
local lower, upper, down, stretch = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])

local indexes = {P .. 'records_named'}
for place = 5, #ARGV, 2 do
  local key, value = ARGV[place], ARGV[place + 1]
  indexes[(place - 3) / 2] = P .. 'record_label:' .. #key .. ':' .. key .. '=' .. value
end

local names
if down then
  names = call('ZREVRANGEBYLEX', indexes[1], upper, lower, 'LIMIT', 0, stretch)
else
  names = call('ZRANGEBYLEX', indexes[1], lower, upper, 'LIMIT', 0, stretch)
end

local function matches(name)
  for place = 2, #indexes do
    if not call('ZSCORE', indexes[place], name) then return false end
  end
  return true
end

local found = {}
for _, name in ipairs(names) do
  if matches(name) then found[#found + 1] = name end
end
local rows, brought = bring_rows(P .. 'records', found)
if brought < #found then return {{unpack(found, 1, brought)}, rows, found[brought]} end
return {found, rows, #names == stretch and names[stretch] or ''}
