-- Deletes the expired actions at the head of a stream (KEYS[1]): by then others have taken their place. A bounded number
-- at a time; how many went.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function expired(fields)
  for at = 1, #fields, 2 do
    if fields[at] == 'expires_at' then
      return (tonumber(fields[at + 1]) or now + 1) <= now
    end
  end
  return false
end

local cleared = 0
for _ = 1, 20 do
  local gone = {}
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 100)) do
    if expired(entry[2]) then
      gone[#gone + 1] = entry[1]
    end
  end
  if #gone == 0 then
    break
  end
  redis.call('XDEL', KEYS[1], unpack(gone))
  cleared = cleared + #gone
end
return cleared
