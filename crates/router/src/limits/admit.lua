-- Counts a request in all of KEYS, unless one of them has reached a limit that refuses.
-- ARGV: tokens of the prompt; then for each key: requests a minute, tokens a minute and tokens a day (-1: no limit), and 1 if it refuses.
-- Returns whether it is refused, seconds since 1970, and the use of each key before this request: requests, tokens, tokens of the day.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local day = math.floor(time[1] / 86400)
local used, refused = {}, 0
for i, key in ipairs(KEYS) do
  local limits = {unpack(ARGV, 4 * i - 2, 4 * i + 1)}
  for j = 1, 3 do limits[j] = tonumber(limits[j]) end
  local known = redis.call('HMGET', key, 'requests', 'tokens', 'at', 'day', 'today')
  local minutes = math.max(0, now - tonumber(known[3] or now)) / 60000
  local requests = math.max(0, tonumber(known[1] or 0) - minutes * math.max(0, limits[1]))
  local tokens = math.max(0, tonumber(known[2] or 0) - minutes * math.max(0, limits[2]))
  local today = tonumber(known[4]) == day and tonumber(known[5]) or 0
  local reached = limits[1] >= 0 and requests + 1 > limits[1]
    or limits[2] >= 0 and tokens >= limits[2]
    or limits[3] >= 0 and today >= limits[3]
  if reached and limits[4] == '1' then refused = 1 end
  used[i] = {requests, tokens, today}
end
local answer = {tostring(refused), tostring(time[1])}
for i, key in ipairs(KEYS) do
  local requests, tokens, today = unpack(used[i])
  if refused == 0 then
    redis.call('HSET', key, 'requests', requests + 1, 'tokens', tokens + ARGV[1], 'at', now, 'day', day, 'today', today + ARGV[1])
    redis.call('EXPIRE', key, 172800)
  end
  for _, number in ipairs(used[i]) do table.insert(answer, string.format('%.17g', number)) end
end
return answer
