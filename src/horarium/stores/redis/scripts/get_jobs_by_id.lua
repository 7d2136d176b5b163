-- ARGV: ids. Answers their rows, and those of the first ids alone if that makes four mebibytes.
local rows, bytes, BYTES_MAX, AT_A_TIME = {}, 0, 4 * 1024 * 1024, 16
for first = 1, #ARGV, AT_A_TIME do
  for _, row in ipairs(redis.call('HMGET', KEYS[1] .. 'jobs', unpack(ARGV, first, math.min(first + AT_A_TIME - 1, #ARGV)))) do
    rows[#rows + 1] = row
    if row then bytes = bytes + #row end
  end
  if bytes >= BYTES_MAX then return rows end
end
return rows
