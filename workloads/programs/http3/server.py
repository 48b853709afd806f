"""Answers HTTP/3: so many bytes as the path says, which depend on it."""
import asyncio, os, sys

sys.path.insert(0, os.environ["BUILD"] + "/http3")
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated


class Server(QuicConnectionProtocol):
    http = None

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        for heard in self.http.handle_event(event) if self.http else ():
            if isinstance(heard, HeadersReceived):
                path = dict(heard.headers)[b":path"]
                length = int(path.split(b"/")[-1])
                body = (path * (length // len(path) + 1))[:length]
                self.http.send_headers(heard.stream_id, [(b":status", b"200")])
                self.http.send_data(heard.stream_id, body, end_stream=True)
                self.transmit()


async def main():
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    state = os.environ["STATE"]
    configuration.load_cert_chain(state + "/certificate.pem", state + "/key.pem")
    await serve("0.0.0.0", 4433, configuration=configuration, create_protocol=Server)
    await asyncio.Event().wait()


asyncio.run(main())
