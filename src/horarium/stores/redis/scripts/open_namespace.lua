-- ARGV: the version of the layout of this namespace, which the first to open it writes. Answers the one that is there.
local P, call = KEYS[1], redis.call
call('SET', P .. 'layout', ARGV[1], 'NX')
return call('GET', P .. 'layout')
