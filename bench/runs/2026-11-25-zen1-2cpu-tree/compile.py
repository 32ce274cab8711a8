#!/usr/bin/env python3
"""Compilers over several builds of tollgate in turn, on a machine whose speed changes.

compile.py DIR ROUNDS native|view NAME=BINARY[:OPTION]...    (as root)

Makes 200 C units of 120 headers in DIR/NAME for each column, and compiles them, two at a time, with
everything in the view; with `native` the directory of the objects is native. Prints, for each column, the
wall time over the compilers' own user time: what the machine's speed changes, it changes in both. An
OPTION goes to `mount`; `@batch` makes the threads of the rings SCHED_BATCH from outside.
"""
import json, os, resource, statistics, subprocess, sys, time

base, rounds, kind, columns = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
HEADERS, UNITS = 120, 200


def sh(command):
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


def generate(root):
    os.makedirs(f"{root}/units")
    for d in range(4):
        os.makedirs(f"{root}/include/i{d}")
    for h in range(HEADERS):
        lines = [f"static inline int f{h}_{i}(int x) {{ return x + {i}; }}\n" for i in range(20)]
        with open(f"{root}/include/i{h % 4}/h{h}.h", "w") as file:
            file.write(f"#ifndef H{h}\n#define H{h}\n" + "".join(lines) + "#endif\n")
    for u in range(UNITS):
        lines = [f'#include "h{h}.h"\n' for h in range(HEADERS)]
        with open(f"{root}/units/unit_{u}.c", "w") as file:
            file.write("".join(lines) + f"int unit_{u}(int x) {{ return f{u % HEADERS}_1(x); }}\n")


def threads(pid):
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        name = open(f"/proc/{pid}/task/{tid}/comm").read().strip()
        found[name, tid] = [int(n) for n in open(f"/proc/{pid}/task/{tid}/schedstat").read().split()]
    return found


def compile_all(place):
    include = " ".join(f"-I{place}/p/include/i{d}" for d in range(4))
    command = (
        f"seq 0 {UNITS - 1} | xargs -P2 -I@ cc {include} -O0 -c {place}/p/units/unit_@.c "
        f"-o {place}/objects/unit_@.o"
    )
    user = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begin = time.perf_counter()
    subprocess.run(command, shell=True, check=True)
    wall = time.perf_counter() - begin
    return wall, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - user


places, servers = {"bare": f"{base}/bare"}, {}
generate(f"{base}/bare/p")
os.makedirs(f"{base}/bare/objects")
for column in columns:
    name = column.split("=")[0]
    places[name] = f"{base}/{name}.mnt"
    sh(f"cp -r {base}/bare {base}/{name}; mkdir {places[name]}")
time.sleep(3)  # Files that were just written are served in another way for two seconds.
for column in columns:
    name, rest = column.split("=", 1)
    binary, *options = rest.split(":")
    policy = f"{base}/{name}.toml"
    with open(policy, "w") as file:
        file.write('[[rule]]\npath = "objects"\naction = "native"\n' if kind == "native" else "")
    given = " ".join(option for option in options if option != "@batch")
    sh(f"{binary} mount --daemon --policy {policy} {given} {base}/{name} {places[name]}")
    servers[name] = json.loads(sh(f"{binary} status --json {places[name]}"))[0]["pid"]
    for thread, tid in threads(servers[name]):
        if "@batch" in options and thread in ("tollgate-fuse-1", "tollgate-fuse-2"):
            sh(f"chrt --batch --pid 0 {tid}")

samples, spent = {name: [] for name in places}, {}
for name in places:
    compile_all(places[name])
for turn in range(rounds):
    order = list(places)
    shift = turn % len(order)
    for name in order[shift:] + order[:shift]:
        before = threads(servers[name]) if name in servers else {}
        samples[name].append(compile_all(places[name]))
        for key, after in (threads(servers[name]) if name in servers else {}).items():
            total = spent.setdefault(name, {}).setdefault(key[0], [0, 0, 0])
            for i, was in enumerate(before.get(key, [0, 0, 0])):
                total[i] += after[i] - was

of_bare = statistics.median(wall / user for wall, user in samples["bare"])
for name, of in samples.items():
    ratios = [wall / user for wall, user in of]
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"{name:12} wall/user {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}), "
        f"of bare {statistics.median(ratios) / of_bare:.4f}; "
        f"wall {statistics.median(wall for wall, _ in of):.2f} s"
    )
for name, by_thread in spent.items():
    for thread, (ran, waited, turns) in sorted(by_thread.items()):
        if ran > 1e6 * rounds:
            print(f"{name:12} {thread}: {ran / rounds / 1e6:.0f} ms, {turns // rounds} turns on a CPU")
for name in servers:
    sh(f"umount --recursive {places[name]}")
