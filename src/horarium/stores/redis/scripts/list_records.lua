-- Walks the names between two bounds (as ZRANGEBYLEX has them) for a bounded stretch, along the first label if there is
-- any. ARGV: lower bound, upper bound, 1 to walk down, how many are looked at; labels (key, value ...). Answers the
-- names found, their rows, and the last name that was looked at ('' at the end). It ends after four mebibytes, too.
local P, call = KEYS[1], redis.call
local BYTES_MAX = 4 * 1024 * 1024
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
local rows, bytes, AT_A_TIME = {}, 0, 16
for first = 1, #found, AT_A_TIME do
  local last = math.min(first + AT_A_TIME - 1, #found)
  for _, row in ipairs(call('HMGET', P .. 'records', unpack(found, first, last))) do
    rows[#rows + 1] = row
    if row then bytes = bytes + #row end
  end
  if bytes >= BYTES_MAX and last < #found then return {{unpack(found, 1, last)}, rows, found[last]} end
end
return {found, rows, #names == stretch and names[stretch] or ''}
