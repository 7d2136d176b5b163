-- ARGV: for each level its kind ('lane' or 'gated'), its priority and its queue. Answers when the first run of each is due
-- ('' where none waits).
local P, call = KEYS[1], redis.call
local found = {}
for place = 1, #ARGV, 3 do
  local key = P .. ARGV[place] .. ':' .. ARGV[place + 1] .. ':' .. ARGV[place + 2]
  found[#found + 1] = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or ''
end
return found
