# /echo returns the body, else ?size=N bytes.
require 'uri'

run(lambda do |environment|
  size = URI.decode_www_form(environment['QUERY_STRING'].to_s).to_h.fetch('size', '2').to_i
  body = environment['PATH_INFO'] == '/echo' ? environment['rack.input'].read : 'x' * size
  [200, { 'Content-Length' => body.bytesize.to_s }, [body]]
end)
