#!/usr/bin/env python3
"""Programs that open, read and close files of 4 KiB beside others that compute.

clients-beside.py DIR COMPUTING CLIENTS SECONDS ROUNDS NAME=BINARY[:OPTION]...    (as root)

Prints, for the bare directory and for each column in turn, how many files per second all clients read
together: median, least and most of the rounds, and the longest time that one of them took.
"""
import os, shutil, statistics, subprocess, sys, time

base, computing, clients = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seconds, rounds, columns = float(sys.argv[4]), int(sys.argv[5]), sys.argv[6:]
FILES = 500


def sh(command):
    subprocess.run(command, shell=True, check=True, capture_output=True)


def client(place, result):
    files, worst, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            begun = time.monotonic()
            file = os.open(f"{place}/f{files % FILES}", os.O_RDONLY)
            os.read(file, 4096)
            os.close(file)
            worst = max(worst, time.monotonic() - begun)
            files += 1
    os.write(result, f"{files} {worst * 1000:.2f}\n".encode())
    os._exit(0)


def compute():
    while True:
        pass


def forked(body):
    child = os.fork()
    if child == 0:
        body()
    return child


def once(place):
    busy = [forked(compute) for _ in range(computing)]
    read, write = os.pipe()
    readers = [forked(lambda: client(place, write)) for _ in range(clients)]
    os.close(write)
    lines = os.fdopen(read).read().splitlines()
    for child in readers:
        os.waitpid(child, 0)
    for child in busy:
        os.kill(child, 9)
        os.waitpid(child, 0)
    found = [line.split() for line in lines]
    return sum(int(files) for files, _ in found) / seconds, max(float(worst) for _, worst in found)


os.makedirs(f"{base}/bare")
for number in range(FILES):
    with open(f"{base}/bare/f{number}", "w") as file:
        file.write("x" * 4096)
places = {"bare": f"{base}/bare"}
for column in columns:
    name, rest = column.split("=", 1)
    binary, *options = rest.split(":")
    shutil.copytree(f"{base}/bare", f"{base}/{name}")
    places[name] = f"{base}/{name}.mnt"
    os.mkdir(places[name])
    sh(f"{binary} mount --daemon --policy none {' '.join(options)} {base}/{name} {places[name]}")
results = {name: [] for name in places}
for _ in range(rounds):
    for name, place in places.items():
        results[name].append(once(place))
for name, found in results.items():
    rates = [rate for rate, _ in found]
    worst = statistics.median(worst for _, worst in found)
    print(f"{name:10} {statistics.median(rates):9.0f} files/s ({min(rates):.0f} to {max(rates):.0f}), worst {worst:.1f} ms")
for name in list(places)[1:]:
    sh(f"umount {places[name]}")
