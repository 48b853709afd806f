"""Asks by HTTP/3, several connections at a time, each with several streams: `client.py CONNECTIONS ROUNDS PATH...`."""
import asyncio, os, ssl, sys

sys.path.insert(0, os.environ["BUILD"] + "/http3")
from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.waiting = {}

    def quic_event_received(self, event):
        for heard in self.http.handle_event(event):
            if isinstance(heard, (DataReceived, HeadersReceived)):
                body, whole = self.waiting[heard.stream_id]
                body += getattr(heard, "data", b"")
                if heard.stream_ended:
                    whole.set_result(bytes(body))

    async def get(self, path):
        stream = self._quic.get_next_available_stream_id()
        whole = asyncio.get_running_loop().create_future()
        self.waiting[stream] = (bytearray(), whole)
        head = {":method": "GET", ":scheme": "https", ":authority": "overfly.test", ":path": path}
        self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in head.items()], end_stream=True)
        self.transmit()
        return await whole


async def visit(rounds, paths):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
    async with connect(os.environ["SERVER"], 4433, configuration=configuration, create_protocol=Client) as client:
        for _ in range(rounds):
            for path, body in zip(paths, await asyncio.gather(*map(client.get, paths))):
                length = int(path.split("/")[-1])
                assert body == (path.encode() * (length // len(path) + 1))[:length], (path, len(body))


async def main():
    connections, rounds, paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    await asyncio.wait_for(asyncio.gather(*(visit(rounds, paths) for _ in range(connections))), 60)


asyncio.run(main())
