#!/usr/bin/env python3
"""written.py DIR FILES BINARY [OPTION]...   (as root)

FILES files in DIR, eight to a directory, are listed through a view, and one of each directory is opened to
append; then half of the directories are renamed. Prints the time, and for each thread of the server CPU
time in ms and turns on a CPU.
"""
import os,sys,subprocess,time,json,shutil
base,N,binary,opts=sys.argv[1],int(sys.argv[2]),sys.argv[3],sys.argv[4:]
os.makedirs(base+'/d'); os.makedirs(base+'/m')
D=N//8
for d in range(D):
    p=f'{base}/d/{d//100}/{d}'; os.makedirs(p)
    for f in range(8): open(f'{p}/f{f}','w').write('x'*100)
time.sleep(3)
def sh(c): return subprocess.run(c,shell=True,check=True,capture_output=True,text=True).stdout
sh(f'{binary} mount --daemon {" ".join(opts)} {base}/d {base}/m')
pid=json.loads(sh(f'{binary} status --json {base}/m'))[0]['pid']
def thr():
    r={}
    for t in os.listdir(f'/proc/{pid}/task'):
        n=open(f'/proc/{pid}/task/{t}/comm').read().strip(); s=open(f'/proc/{pid}/task/{t}/schedstat').read().split()
        a=r.setdefault(n,[0,0]); a[0]+=int(s[0])/1e6; a[1]+=int(s[2])
    return r
def run(name,f):
    a=thr(); t=time.time(); f(); w=time.time()-t; b=thr()
    d={k:(round(v[0]-a.get(k,[0,0])[0]),v[1]-a.get(k,[0,0])[1]) for k,v in b.items() if v[0]-a.get(k,[0,0])[0]>5}
    print(f'{name}: {w:.2f} s', d,flush=True)
def touch(root):
    for d in range(D):
        with open(f'{root}/{d//100}/{d}/f0','a') as f: f.write('y')
try:
    run('find',lambda: sh(f'find {base}/m -size +0 | wc -l'))
    time.sleep(1.2)
    run('find2',lambda: sh(f'find {base}/m -size +0 | wc -l'))
    run('bare append',lambda: touch(f'{base}/d'))
    time.sleep(2)
    run('find3',lambda: sh(f'find {base}/m -size +0 | wc -l'))
    run('append',lambda: touch(f'{base}/m'))
    run('append again',lambda: touch(f'{base}/m'))
    time.sleep(1)
    run('rename dirs', lambda: [os.rename(f'{base}/m/{d//100}/{d}',f'{base}/m/{d//100}/r{d}') for d in range(0,D,2)])
finally:
    time.sleep(.5); sh(f'umount {base}/m')
