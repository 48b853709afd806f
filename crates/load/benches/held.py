#!/usr/bin/env python3
"""Memory of a flow whose answer nobody reads: nginx on the kernel's TCP, and the server side of a profile.

    python3 crates/load/benches/held.py [--overfly PATH] [--few N] [--many N]

As root. Clients on kernel sockets with receive buffers of 2 KB ask for 32 KB and read nothing, so that the server's side holds the rest. What
many of them take more than few, by connection: anonymous memory of the server's process, pages of the kernel's TCP (/proc/net/sockstat), its
sockets, inodes, files and directory entries (/proc/slabinfo). The clients' own share of the last two is in both, and is what the profile's
server has of them: it is taken off nginx's.
"""
import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
ADDRESS, SIZE = "10.77.0.1", 32768
REQUEST = "GET /{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".format(SIZE)
SLABS = "TCP", "sock_inode_cache", "filp", "dentry"


def hold(count):
    """The clients, in a process of their own until its standard input ends."""
    import socket
    held = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        one.connect((ADDRESS, 80))
        one.sendall(REQUEST.encode())
        held.append(one)
    print("asked", flush=True)
    sys.stdin.read()


def taken(process):
    """Bytes: anonymous, pages of TCP, slabs."""
    with open("/proc/{}/status".format(process)) as file:
        anonymous = next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))
    with open("/proc/net/sockstat") as file:
        pages = next(int(line.split()[-1]) for line in file if line.startswith("TCP"))
    with open("/proc/slabinfo") as file:
        rows = [line.split() for line in file]
    slabs = sum(int(row[1]) * int(row[3]) for row in rows if row[0] in SLABS)
    return anonymous, pages * resource.getpagesize(), slabs


def of_a_connection(args, lab, process):
    """What a connection takes of each."""
    found = []
    for count in args.few, args.many:
        client = subprocess.Popen(lab("client") + [sys.executable, os.path.abspath(__file__), "--hold", str(count)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        client.stdout.readline()
        time.sleep(2)
        found.append(taken(process))
        client.stdin.close()
        client.wait()
        time.sleep(1)
    return [(many - few) / (args.many - args.few) for few, many in zip(*found)]


def serving(args, lab, words, find):
    """Starts a server, and says what a connection to it takes."""
    server = subprocess.Popen(lab("server") + words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        return of_a_connection(args, lab, find(server.pid))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def first_child(process):
    with open("/proc/{0}/task/{0}/children".format(process)) as file:
        return int(file.read().split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overfly", default=os.path.join(ROOT, "target/release/overfly"))
    parser.add_argument("--few", type=int, default=200)
    parser.add_argument("--many", type=int, default=2200)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.hold:
        return hold(args.hold)
    prefix = "held{}".format(os.getpid() % 10000)
    os.environ["OVERFLY_LAB_PREFIX"] = prefix
    lab = lambda end: [args.overfly, "lab", "exec", end, "--"]
    subprocess.run([args.overfly, "lab", "up"], check=True, stdout=subprocess.DEVNULL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/www")
            with open("{}/www/{}".format(folder, SIZE), "wb") as file:
                file.write(bytes(SIZE))
            os.chmod(folder, 0o755)
            with open(os.path.join(ROOT, "workloads/nginx/nginx.conf")) as file:
                text = file.read().replace("@ROOT@", folder).replace("@WORKERS@", "1").replace("@PORT@", "80")
            with open(folder + "/nginx.conf", "w") as file:
                file.write(text)
            nginx = serving(args, lab, ["nginx", "-e", "stderr", "-p", folder, "-c", folder + "/nginx.conf"], first_child)
        profile = os.path.join(ROOT, "workloads/astf/web.py")
        ours = serving(args, lab, [args.overfly, "load", "astf", profile, "--side", "server", "--link", "xdp", "--interface", "eth0",
                                   "-d", "300s", "-t", "--server " + ADDRESS], lambda process: process)
    finally:
        subprocess.run([args.overfly, "lab", "down"], check=True, stdout=subprocess.DEVNULL)
    kernel = nginx[1] + nginx[2] - ours[1] - ours[2]
    print("bytes a connection: nginx {:.0f}, the kernel's TCP for it {:.0f}; the profile's server side {:.0f}: {:.0f} times less than the "
          "kernel's, {:.0f} than both".format(nginx[0], kernel, ours[0], kernel / ours[0], (kernel + nginx[0]) / ours[0]))


main()
