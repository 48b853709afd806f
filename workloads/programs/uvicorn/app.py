"""An ASGI application: /echo returns the body, else ?size=N bytes."""

from urllib.parse import parse_qs


async def answer(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    if scope["path"] != "/echo":
        body = b"x" * int(parse_qs(scope["query_string"].decode()).get("size", ["2"])[0])
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})
