"""client.py ready | check | measure SECONDS"""
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

ADDRESS = os.environ["SERVER"] + ":8080"
OPTIONS = [
    ("grpc.max_receive_message_length", 20 << 20),
    ("grpc.max_send_message_length", 20 << 20),
    # Each channel has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
]


def channel():
    return grpc.insecure_channel(ADDRESS, OPTIONS)


def use(number):
    with channel() as one:
        echo = one.unary_unary("/overfly.Test/Echo")
        large, small = os.urandom(5 << 20), b"hello %d" % number
        assert echo(large, timeout=60) == large
        for _ in range(50):
            assert echo(small, timeout=20) == small
        assert list(one.unary_stream("/overfly.Test/Repeat")(small * 100, timeout=60)) == [small * 100] * 200
        assert one.stream_unary("/overfly.Test/Count")((bytes(10_000) for _ in range(100)), timeout=60) == b"1000000"
        messages = [os.urandom(1000 + 100 * step) for step in range(100)]
        assert list(one.stream_stream("/overfly.Test/EchoEach")(iter(messages), timeout=60)) == messages
        try:
            one.unary_unary("/overfly.Test/Linger")(small, timeout=0.5)
            raise AssertionError("its deadline is over")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
        call = one.unary_stream("/overfly.Test/Repeat")(large, timeout=60)
        next(call)
        call.cancel()
        assert echo(small, timeout=20) == small


def check():
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(use, range(12)))
    channels = [channel() for _ in range(50)]
    calls = [one.unary_unary("/overfly.Test/Echo").future(b"%d" % number, timeout=30) for number, one in enumerate(channels)]
    assert [call.result() for call in calls] == [b"%d" % number for number in range(50)]
    for one in channels:
        one.close()


def measure(seconds):
    """Calls a second: eight channels, each with four under way."""
    end, done = time.monotonic() + seconds, []

    def call(one):
        echo, count = one.unary_unary("/overfly.Test/Echo"), 0
        while time.monotonic() < end:
            echo(b"sixteen bytes ..", timeout=20)
            count += 1
        done.append(count)

    channels = [channel() for _ in range(8)]
    threads = [threading.Thread(target=call, args=(one,)) for one in channels * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(done) / seconds)


word = sys.argv[1]
if word == "ready":
    with channel() as one:
        assert one.unary_unary("/overfly.Test/Echo")(b"?", timeout=1) == b"?"
elif word == "check":
    check()
else:
    measure(float(sys.argv[2]))
