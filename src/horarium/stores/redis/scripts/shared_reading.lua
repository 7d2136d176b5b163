-- Reading values that may be large; the first of what is shared.

local P, call = KEYS[1], redis.call
local CALL_BYTES_MAX, AT_A_TIME = 4 * 1024 * 1024, 16

-- What each of these hashes (place -> key) has in these fields, by place, and of how many fields: they are read some at a
-- time, until a call brings as many bytes as it may. Who asked goes on from there.
local function bring(keys, fields)
  local parts, bytes = {}, 0
  for place in pairs(keys) do parts[place] = {} end
  for first = 1, #fields, AT_A_TIME do
    local last = math.min(first + AT_A_TIME - 1, #fields)
    for place, key in pairs(keys) do
      local part = parts[place]
      for _, value in ipairs(call('HMGET', key, unpack(fields, first, last))) do
        part[#part + 1] = value
        if value then bytes = bytes + #value end
      end
    end
    if bytes >= CALL_BYTES_MAX then return parts, last end
  end
  return parts, #fields
end

-- The same of one hash.
local function bring_rows(key, fields)
  local parts, brought = bring({key}, fields)
  return parts[1], brought
end

-- The ids of the jobs of these names; '' for one that is not there.
local function ids_of_names(names)
  local ids = call('HMGET', P .. 'names', unpack(names))
  for place, id in ipairs(ids) do ids[place] = id or '' end
  return ids
end
