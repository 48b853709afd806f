"""An HTTP server on asyncio's streams: /echo returns the body, /pieces writes slowly, else ?size=N bytes."""

import asyncio
import signal
from urllib.parse import parse_qs, urlsplit


async def answer(reader, writer):
    try:
        while line := await reader.readline():
            _, target, _ = line.split()
            length, keep = 0, True
            while (field := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = field.decode().partition(":")
                if name.lower() == "content-length":
                    length = int(value)
                if name.lower() == "connection" and value.strip().lower() == "close":
                    keep = False
            url = urlsplit(target.decode())
            if url.path == "/pieces":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n")
                for _ in range(50):
                    writer.write(b"piece\n")
                    await writer.drain()
                    await asyncio.sleep(0.002)
            else:
                body = await reader.readexactly(length) if length else b"x" * int(parse_qs(url.query).get("size", ["2"])[0])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
            if not keep:
                break
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    writer.close()


async def main():
    server = await asyncio.start_server(answer, "0.0.0.0", 8080, limit=1 << 20)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with server:
        await stop.wait()


asyncio.run(main())
