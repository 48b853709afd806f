"""Calls of each kind, whose messages are bytes, so that no code is generated."""
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc


def echo(message, _):
    return message


def repeat(message, _):
    yield from [message] * 200


def count(messages, _):
    return b"%d" % sum(map(len, messages))


def echo_each(messages, _):
    yield from messages


def linger(message, _):
    time.sleep(5)
    return message


HANDLERS = {
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Repeat": grpc.unary_stream_rpc_method_handler(repeat),
    "Count": grpc.stream_unary_rpc_method_handler(count),
    "EchoEach": grpc.stream_stream_rpc_method_handler(echo_each),
    "Linger": grpc.unary_unary_rpc_method_handler(linger),
}
LIMITS = [("grpc.max_receive_message_length", 20 << 20), ("grpc.max_send_message_length", 20 << 20)]

server = grpc.server(ThreadPoolExecutor(32), options=LIMITS)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("overfly.Test", HANDLERS),))
server.add_insecure_port("0.0.0.0:8080")
server.start()
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
ended.wait()
server.stop(1).wait()
