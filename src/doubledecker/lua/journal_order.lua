-- part: which of two entries of a journal is the later one.

local function is_after(a, b)
  local a_ms, a_n = string.match(a, "(%d+)-(%d+)")
  local b_ms, b_n = string.match(b, "(%d+)-(%d+)")
  a_ms, b_ms = tonumber(a_ms), tonumber(b_ms)
  return a_ms > b_ms or (a_ms == b_ms and tonumber(a_n) > tonumber(b_n))
end
