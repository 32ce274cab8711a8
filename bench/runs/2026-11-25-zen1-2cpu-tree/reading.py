#!/usr/bin/env python3
"""Reads 6,000 files of a view again and again, and shows where the server's threads were meanwhile.

reading.py DIR ROUNDS BINARY [OPTION]...    (as root; DIR must not exist)

An OPTION goes to `mount`. For each round: the wall time of `grep -r`, how long CPUs were kept awake, and for
each thread of the server that ran for 1 ms or more: its CPU time, how long it waited for a CPU (w), how
often it slept (v), how often others ran in its place (n), and how often it changed its CPU (m).
"""
import json, os, subprocess, sys, time

base, rounds, binary, options = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
lower, view = f"{base}/lower", f"{base}/view"
for d in range(300):
    os.makedirs(f"{lower}/d{d}")
    for f in range(20):
        with open(f"{lower}/d{d}/f{f}", "w") as file:
            file.write("hello world\n" * 200)
os.makedirs(view)
time.sleep(5)  # Files that were just written are served in another way.


def status():
    return json.loads(subprocess.check_output([binary, "status", "--json", view]))[0]


def threads(pid):
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        task = f"/proc/{pid}/task/{tid}"
        ran, waited, _ = map(int, open(f"{task}/schedstat").read().split())
        lines = [line.split(":") for line in open(f"{task}/status").read().splitlines()]
        slept, others = (
            next(int(line[1]) for line in lines if line[0] == name)
            for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        )
        sched = open(f"{task}/sched").read().splitlines()
        moved = next(int(line.split(":")[1]) for line in sched if "nr_migrations" in line)
        found[tid] = (open(f"{task}/comm").read().strip(), ran, waited, slept, others, moved)
    return found


def read():
    begin = time.perf_counter()
    subprocess.run(["grep", "-r", "nowhere", view])
    return time.perf_counter() - begin


subprocess.run([binary, "mount", "--daemon", "--policy", "none", *options, lower, view], check=True)
time.sleep(0.6)
pid = status()["pid"]
read()
for _ in range(rounds):
    time.sleep(0.3)
    awake, before = status()["keep_awake"]["awake_seconds"], threads(pid)
    wall, after = read(), threads(pid)
    awake = status()["keep_awake"]["awake_seconds"] - awake
    print(f"{wall * 1e3:4.0f} ms, awake {awake * 1e3:.0f} ms", end="")
    for tid, (name, *now) in after.items():
        ran, waited, slept, others, moved = (b - a for a, b in zip(before.get(tid, now)[-5:], now))
        if ran >= 1e6:
            print(f"; {name} {ran / 1e6:.0f} ms w{waited / 1e6:.0f} v{slept} n{others} m{moved}", end="")
    print()
subprocess.run(["umount", view], check=True)
