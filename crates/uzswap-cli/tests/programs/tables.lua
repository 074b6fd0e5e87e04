-- Tables and strings of Lua; prints what they come to.
local count = 60000 * tonumber(arg[1])

local function mix(sum, text)
  for at = 1, #text, 7 do
    sum = (sum * 31 + text:byte(at)) % 4294967291
  end
  return sum
end

local function name(i)
  local key = ("%08x"):format(i * 2654435761 % 4294967296)
  return key .. ("row %d of a table "):format(i):rep(16) .. key
end

local rows, names = {}, {}
for i = 1, count do
  rows[i] = { number = i, name = name(i), list = { i, i / 7, i * 3 } }
  names["key " .. i] = rows[i]
end
local words = {}
for i = 0, count * 40 - 1 do
  words[i] = i % 1000
end
for turn = 1, 3 do
  local sum = 0
  for i = 1, count do
    local row = rows[i]
    sum = mix(sum, row.name)
    row.list[#row.list + 1] = turn
    if i % 9 == turn then row.name = row.name:sub(1, 40) .. turn end
  end
  for i = 1, count, 3 do
    sum = mix(sum, names["key " .. i].name)
  end
  local words_sum = 0
  for i = 0, count * 40 - 1 do
    words_sum = (words_sum + words[i] * turn) % 1000003
    words[i] = words_sum
  end
  print(turn, ("%.0f"):format(sum), ("%.0f"):format(words_sum), #rows)
end
