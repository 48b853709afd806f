-- The table that a script finds as `wrk`, beside what comes from Rust: lookup, connect and thread.

wrk.method = "GET"
wrk.headers = {}

function wrk.format(method, path, headers, body)
   headers = headers or wrk.headers
   body = body or wrk.body
   headers["Host"] = headers["Host"] or wrk.headers["Host"]
   headers["Content-Length"] = body and #body or nil

   local lines = { (method or wrk.method) .. " " .. (path or wrk.path) .. " HTTP/1.1" }
   for name, value in pairs(headers) do
      lines[#lines + 1] = name .. ": " .. tostring(value)
   end
   lines[#lines + 1] = ""
   lines[#lines + 1] = body or ""
   return table.concat(lines, "\r\n")
end

-- Called once in the state of all threads, for each thread.
function wrk.setup(thread)
   if type(setup) == "function" then
      setup(thread)
   end
end

-- Called once in each thread's state. wrk2's scripts call it from their own init, where it must not come back to them.
local begun = false
function wrk.init(args)
   local again = begun
   begun = true
   wrk.headers["Host"] = wrk.headers["Host"] or wrk.authority
   if not again and type(init) == "function" then
      init(args)
   end
   local request = wrk.format()
   wrk.request = function()
      return request
   end
end
