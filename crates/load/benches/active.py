#!/usr/bin/env python3
"""Connections a second of work with a thousand and with a million flows open on each side, in turns.

    python3 crates/load/benches/active.py [--overfly PATH] [--rounds N] [--small K] [--large K] [--cpu N]

Both run seven.py on one thread at a fixed rate, thousands a second, which should keep it some 90 % busy: a rate that is too high makes a queue,
and a queue's timeouts, one that is far too low small batches. What is counted is connections that ended, divided by the time that the
thread had something to do, in steady state. "hold" waits before the connection is closed, "first" before the request: there the
packets of a connection are the same, however long it waits; of "hold" a long wait adds a delayed acknowledgment.
"""
import argparse
import csv
import os
import statistics
import subprocess
import tempfile

PROFILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seven.py")


def run(args, wait, thousands, flows, seconds, folder):
    wait_us = int(flows / thousands * 1e3)
    steady_s = wait_us / 1e6 * 1.1 + 0.5
    name = os.path.join(folder, "run.csv")
    tunables = "--{} {} --clients 4000".format(wait, wait_us)
    subprocess.run(
        [args.overfly, "load", "astf", PROFILE, "-m", str(thousands * 1e3), "-d", "{}s".format(int(steady_s + seconds + 1)),
         "--drain", "0s", "--cpus", args.cpu, "--csv", name, "-t", tunables],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(name) as file:
        rows = [row for row in csv.DictReader(file) if float(row["elapsed_s"]) > steady_s and float(row["length_s"]) > 0.5]
    total = lambda column: sum(float(row[column]) for row in rows)
    busy_s = sum(float(row["busy"]) * float(row["length_s"]) for row in rows)
    late = total("client.flows_late") + total("client.tcps_rexmttimeo") + total("server.tcps_rexmttimeo")
    print("{:5} {:9,} open: {:8,.0f} connections a busy second, {:3.0f} % busy, {:.1f} % late or timed out".format(
        wait, int(rows[-1]["client.m_active_flows"]), total("server.tcps_closed") / busy_s,
        100 * busy_s / total("length_s"), 100 * late / total("server.tcps_closed")), flush=True)
    return total("server.tcps_closed") / busy_s


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overfly", default="target/release/overfly", help="the command")
    parser.add_argument("--rounds", type=int, default=3, help="of each wait, in both orders")
    parser.add_argument("--small", type=float, default=550, help="rate with a thousand open, thousands a second")
    parser.add_argument("--large", type=float, default=380, help="rate with a million open, thousands a second")
    parser.add_argument("--cpu", default="1")
    args = parser.parse_args()
    print("load", open("/proc/loadavg").read().strip())
    with tempfile.TemporaryDirectory() as folder:
        for wait in ("hold", "first"):
            cases = [(args.small, 1000, 2), (args.large, 1_000_000, 3)]
            rates = {1000: [], 1_000_000: []}
            for number in range(args.rounds):
                for thousands, flows, seconds in cases if number % 2 == 0 else cases[::-1]:
                    rates[flows].append(run(args, wait, thousands, flows, seconds, folder))
            small, large = (statistics.median(rates[flows]) for flows in (1000, 1_000_000))
            print("{}: {:,.0f} and {:,.0f}, {:.1f} %".format(wait, small, large, 100 * large / small), flush=True)
    print("load", open("/proc/loadavg").read().strip())


main()
