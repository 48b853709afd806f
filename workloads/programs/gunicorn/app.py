"""A WSGI application: /echo returns the body, /slow takes 20 s, else ?size=N bytes."""

import time
from urllib.parse import parse_qs


def answer(environment, start):
    path = environment["PATH_INFO"]
    if path == "/slow":
        time.sleep(20)
    if path == "/echo":
        body = environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))
    else:
        body = b"x" * int(parse_qs(environment["QUERY_STRING"]).get("size", ["2"])[0])
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
