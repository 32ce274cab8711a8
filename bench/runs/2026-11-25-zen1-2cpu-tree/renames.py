#!/usr/bin/env python3
"""renames.py DIR BINARY...: `find` over 20,000 files in a view with a `hide` rule, right after another
directory was renamed in the view. DIR must not exist. Needs root."""
import os
import statistics
import subprocess
import sys
import time

base, binaries = sys.argv[1], sys.argv[2:]
lower, view = base + "/dir", base + "/mnt"
os.makedirs(view)
for i in range(250):
    for j in range(10):
        at = f"{lower}/tree/{i}/{j}"
        os.makedirs(at)
        for k in range(8):
            with open(f"{at}/{k}", "w") as file:
                file.write("x" * 100)
os.makedirs(lower + "/moves/in")
with open(base + "/policy.toml", "w") as file:
    file.write('[[rule]]\nname = "env"\npath = "**/.env"\naction = "hide"\n')


def find():
    begun = time.time()
    subprocess.run(["find", view + "/tree", "-size", "+0"], stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (time.time() - begun)


for binary in 2 * binaries:
    command = [binary, "mount", "--transport", "devfuse", "--policy", base + "/policy.toml", lower, view]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not os.path.exists(view + "/tree"):
        time.sleep(0.02)
    for _ in range(4):
        find()
        time.sleep(1.1)
    warm, after = [], []
    for _ in range(5):
        warm.append(find())
        os.rename(view + "/moves", view + "/moved")
        time.sleep(0.3)
        after.append(find())
        os.rename(view + "/moved", view + "/moves")
        time.sleep(0.3)
        find()
        time.sleep(1.1)
        find()
    subprocess.run([binary, "umount", view], check=True)
    server.wait(20)
    spread = f"{min(after):.0f} to {max(after):.0f}"
    print(f"{binary}: {statistics.median(warm):.0f} ms, after a rename {statistics.median(after):.0f} ({spread})")
