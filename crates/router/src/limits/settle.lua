-- Corrects the tokens of a request that ends, in all of KEYS. ARGV: the difference to those that were counted.
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then
    local known = redis.call('HMGET', key, 'tokens', 'today')
    redis.call('HSET', key, 'tokens', math.max(0, known[1] + ARGV[1]), 'today', math.max(0, known[2] + ARGV[1]))
  end
end
