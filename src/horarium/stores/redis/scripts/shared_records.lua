-- Records, and what a write brings along; comes after `shared_runs`.
--
-- A row is a MessagePack array: version, labels (key, value, key, value ...), and the body, which no script looks at.
--
--   records         hash: name -> row         record_label:N:K=V  names of records with a label
--   records_named   all names

local RECORDS, RECORD_NAMES = P .. 'records', P .. 'records_named'
local RECORD_HEADER, RECORD_LOOKED_AT = 1, 2

local function record_label_key(key, value) return P .. 'record_label:' .. #key .. ':' .. key .. '=' .. value end

local function read_record(row)
  local _, version, labels = unpack_limit(row, RECORD_LOOKED_AT, RECORD_HEADER)
  return version, labels
end

-- Insert a record unless its name is taken.
local function add_record(name, row)
  if call('HSETNX', RECORDS, name, row) == 0 then return end
  call('ZADD', RECORD_NAMES, 0, name)
  local _, labels = read_record(row)
  for place = 1, #labels, 2 do call('ZADD', record_label_key(labels[place], labels[place + 1]), 0, name) end
end

local function delete_record(name, row)
  local _, labels = read_record(row)
  for place = 1, #labels, 2 do call('ZREM', record_label_key(labels[place], labels[place + 1]), name) end
  call('ZREM', RECORD_NAMES, name)
  call('HDEL', RECORDS, name)
end

-- Insert the runs and records that come with something that was written. `place`: where in ARGV they are (nil: there
-- are none): how many runs, how many records; the runs (see `add_run`); and of each record its name and the place of
-- its row.
local function bring_along(place)
  if not place then return end
  local batch, name, row = ARGV[place], nil, nil
  local at, runs, records = unpack_limit(batch, 2, 0)
  for _ = 1, runs do at = add_run(batch, at) end
  for _ = 1, records do
    at, name, row = unpack_limit(batch, 2, at)
    add_record(name, ARGV[row])
  end
end
