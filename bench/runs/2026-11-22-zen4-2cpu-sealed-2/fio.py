#!/usr/bin/env python3
"""fio randrw 32 KiB, iodepth 64, verify=sha512 on sealed files, for attributes of the queue `seal`.

usage: fio.py TOLLGATE OUT.json [SECONDS]    one round; results are added to OUT.json. As root.
"""
import json, os, subprocess, sys, tempfile, time, shutil

TOLLGATE, OUT = sys.argv[1], sys.argv[2]
SECONDS = sys.argv[3] if len(sys.argv) > 3 else "2"
LEVELS = {"HIGH": 24, "MED": 8, "LOW": 4}
CONFIGS = {
    "SYSTEM": ["affinity_scope=system", "affinity_strict=false", "localize=false"],
    "CACHE": ["affinity_scope=cache", "affinity_strict=false", "localize=false"],
    "CACHE+STRICT": ["affinity_scope=cache", "affinity_strict=true", "localize=false"],
    "SYSTEM+LOCAL": ["affinity_scope=system", "affinity_strict=false", "localize=true"],
    "CACHE+LOCAL": ["affinity_scope=cache", "affinity_strict=false", "localize=true"],
}
POLICY = "[[rule]]\npath = 'vault/**'\nkind = 'file'\naction = 'seal'\ndomain = 'fio'\n"

def busy():
    with open("/proc/stat") as stat:
        numbers = [int(n) for n in stat.readline().split()[1:]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)

base = tempfile.mkdtemp(prefix="tollgate-fio-")
lower, view = os.path.join(base, "lower"), os.path.join(base, "view")
os.makedirs(os.path.join(lower, "vault")); os.makedirs(view)
open(os.path.join(base, "policy"), "w").write(POLICY)
key = os.path.join(base, "key")
subprocess.run([TOLLGATE, "seal", "init", "--new-key-file", key, lower], check=True, stdout=subprocess.DEVNULL)
server = subprocess.Popen([TOLLGATE, "mount", "--policy", os.path.join(base, "policy"), "--seal-key-file", key, lower, view], stderr=subprocess.PIPE, text=True)
try:
    while "ready" not in server.stderr.readline(): pass
    results = json.load(open(OUT)) if os.path.exists(OUT) else []
    for level, jobs in LEVELS.items():
        for name, settings in CONFIGS.items():
            subprocess.run([TOLLGATE, "wq", "set", "--pid", str(server.pid), "seal", *settings], check=True, stdout=subprocess.DEVNULL)
            before = busy()
            fio = subprocess.run(["fio", "--name=f", "--directory=" + os.path.join(view, "vault"), f"--numjobs={jobs}", "--size=8m",
                "--rw=randrw", "--bs=32k", "--iodepth=64", "--ioengine=libaio", "--direct=1", "--verify=sha512", "--time_based",
                "--runtime=" + SECONDS, "--group_reporting", "--output-format=json"], capture_output=True, text=True)
            after = busy()
            text = fio.stdout[fio.stdout.index("{"):] if "{" in fio.stdout else "{}"
            job = json.loads(text)["jobs"][0]
            bandwidth = (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 2**20
            cpu = 100 * (after[0] - before[0]) / (after[1] - before[1])
            results.append({"level": level, "config": name, "mib_s": round(bandwidth, 1), "cpu_percent": round(cpu, 1), "error": job["error"], "status": fio.returncode})
            print(level, name, results[-1], flush=True)
    json.dump(results, open(OUT, "w"), indent=1)
finally:
    server.terminate(); server.wait(); shutil.rmtree(base)
