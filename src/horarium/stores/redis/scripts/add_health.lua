-- uses: shared_health
-- ARGV: for each job its id and the values of `HEALTH`, each behind a `+` ('': there is none). Nothing is written over.
for first = 1, #ARGV, #HEALTH + 1 do
  local key = P .. 'health:' .. ARGV[first]
  if call('EXISTS', key) == 0 then
    for place, name in ipairs(HEALTH) do
      local value = ARGV[first + place]
      if value ~= '' then call('HSET', key, name, value:sub(2)) end
    end
    if call('HEXISTS', key, 'failures') == 1 then call('SADD', P .. 'failing', ARGV[first]) end
  end
end
