"""`ready`: whether the broker answers. `check`: messages come as they were sent. `measure N`: how many a second."""

import os
import sys
import time

import pika

connection = pika.BlockingConnection(pika.ConnectionParameters(os.environ["SERVER"], socket_timeout=10))
channel = connection.channel()
if sys.argv[1] != "ready":
    channel.queue_declare(queue=sys.argv[1])
    count = 2000 if sys.argv[1] == "check" else int(sys.argv[2])
    begin = time.monotonic()
    bodies = [b"%d" % number * (1 + number * 7 % 1000 if sys.argv[1] == "check" else 1) for number in range(count)]
    for body in bodies:
        channel.basic_publish("", sys.argv[1], body)
    channel.basic_qos(prefetch_count=200)
    got = []
    for delivered, _, body in channel.consume(sys.argv[1], inactivity_timeout=30):
        assert delivered is not None, f"{len(got)} of {count} came"
        got.append(body)
        channel.basic_ack(delivered.delivery_tag)
        if len(got) == count:
            break
    assert got == bodies
    if sys.argv[1] == "measure":
        print(count / (time.monotonic() - begin))
connection.close()
