// Node's own HTTP server: answers with what it was sent, with sizes, and in pieces.
const http = require("node:http");

http
  .createServer((request, response) => {
    const url = new URL(request.url, "http://server");
    if (url.pathname === "/echo") return request.pipe(response);
    if (url.pathname === "/pieces") {
      let left = 50;
      const timer = setInterval(() => {
        response.write("piece\n");
        if (--left === 0) {
          clearInterval(timer);
          response.end();
        }
      }, 2);
      return;
    }
    response.end(Buffer.alloc(Number(url.searchParams.get("size") ?? 2), "x"));
  })
  .listen(8080, "0.0.0.0");
