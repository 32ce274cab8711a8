#!/usr/bin/env python3
"""pairs.py STEPS PAIRS ROUNDS FILE...

On CPU 0, opens, reads and closes each FILE in turn, PAIRS times, and computes STEPS * 20 additions after each
close. Prints medians over ROUNDS of what a whole step, its open, its read and close, and its computing take.
"""
import os
import statistics
import sys
import time

steps, pairs, rounds, files = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
os.sched_setaffinity(0, {0})


def once(path):
    times = []
    for _ in range(pairs):
        begin = time.perf_counter()
        fd = os.open(path, os.O_RDONLY)
        opened = time.perf_counter()
        os.read(fd, 10)
        os.close(fd)
        closed = time.perf_counter()
        total = 0
        for number in range(int(steps * 20)):
            total += number
        end = time.perf_counter()
        times.append([x * 1e6 for x in (end - begin, opened - begin, closed - opened, end - closed)])
    return [statistics.median(column) for column in zip(*times)]


found = {path: [] for path in files}
for path in files:
    once(path)
for turn in range(rounds):
    first = turn % len(files)
    for path in files[first:] + files[:first]:
        found[path].append(once(path))
for path, all_rounds in found.items():
    medians = [statistics.median(column) for column in zip(*all_rounds)]
    least = min(one[0] for one in all_rounds)
    print(path, "step %.1f open %.1f close %.1f work %.1f us," % tuple(medians), "least step %.1f" % least)
