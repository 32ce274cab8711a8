#!/usr/bin/env python3
"""directories.py DIR NAME=BINARY...   (as root)

Renames 2,000 directories in DIR and in a view of each build in turn, six rounds, over /dev/fuse.
"""
import os,sys,time,subprocess,shutil,statistics
base=sys.argv[1]; os.makedirs(base+'/bare')
for i in range(2000):
    os.makedirs(f'{base}/bare/s/{i}'); open(f'{base}/bare/s/{i}/f','w').write('x')
cols=dict(c.split('=') for c in sys.argv[2:])
for n,b in cols.items():
    shutil.copytree(base+'/bare',f'{base}/{n}'); os.makedirs(f'{base}/{n}.mnt')
    subprocess.run(f'{b} mount --daemon --transport devfuse {base}/{n} {base}/{n}.mnt',shell=True,check=True,stderr=subprocess.DEVNULL)
    subprocess.run(f'find {base}/{n}.mnt -size +0 > /dev/null',shell=True)
places={'bare':base+'/bare',**{n:f'{base}/{n}.mnt' for n in cols}}
res={n:[] for n in places}; state={n:('','r') for n in places}
for r in range(6):
    for n,p in places.items():
        a,b=state[n]; t=time.perf_counter()
        for i in range(2000): os.rename(f'{p}/s/{a}{i}',f'{p}/s/{b}{i}')
        res[n].append((time.perf_counter()-t)/2000*1e6); state[n]=(b,a)
for n,v in res.items(): print(n, f'{statistics.median(v):.1f} us ({min(v):.1f}-{max(v):.1f})')
for n in cols: subprocess.run(['umount',f'{base}/{n}.mnt'])
