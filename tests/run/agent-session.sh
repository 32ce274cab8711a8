#!/bin/sh
# What an agent does in a project, under the default fence: as CMD of `tollgate run`. Each step
# prints `ok NAME`, `skipped NAME` where the tool is missing, or `FAILED NAME`.
export LC_ALL=C GIT_EDITOR=true

step() {
    name=$1 tool=$2
    shift 2
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "skipped $name"
    elif "$@" >/tmp/step.log 2>&1; then
        echo "ok $name"
    else
        echo "FAILED $name"
        cat /tmp/step.log
    fi
}

refused() { ! "$@"; }

step git-status git git status
step git-commit git sh -c 'echo more >>a.txt && git add a.txt &&
    git -c user.name=a -c user.email=a@example.com commit -qm more'
step git-log git git log --oneline -1
step git-branch git sh -c 'git checkout -qb work && git checkout -q -'
step node node node -e 'require("fs").writeFileSync("n.js", "console.log(6 * 7)")'
step node-script node sh -c 'test "$(node n.js)" = 42'
step python python3 python3 -c 'open("p.txt", "w").write(str(sum(range(10))))'
step python-venv python3 sh -c 'python3 -m venv --without-pip .venv && .venv/bin/python -c "print(1)"'
step cargo cargo sh -c 'cd crate && cargo --offline run -q && cargo --offline test -q'
step make make sh -c 'printf "all:\n\techo made >made.txt\n" >Makefile && make -s && test -s made.txt'
step vim vim vim -es -N -u NONE -c 'normal oedited' -c 'wq' a.txt
step ed ed sh -c 'printf "a\nby ed\n.\nw\nq\n" | ed -s a.txt'
step temporary sh sh -c 'd=$(mktemp -d) && echo x >"$d/x" && mv "$d/x" moved.txt'
step home-cache sh sh -c 'mkdir -p ~/.cache/tool && echo x >~/.cache/tool/x'
step ssh-keys-refused ssh refused sh -c 'cat ~/.ssh/*'
step ssh-agent-refused ssh-add refused ssh-add -l
step ssh-refused ssh refused ssh -o BatchMode=yes -o ConnectTimeout=2 -p 1 127.0.0.1 true
step session-bus-refused sh sh -c 'test -z "$DBUS_SESSION_BUS_ADDRESS"'
step docker-refused sh refused test -S /var/run/docker.sock

# Every way to read that costs little, for a secret that must not be there.
{
    env
    cat /proc/*/environ
    git log -p --all
    find . ~ /home /root /tmp /run -xdev -type f -exec cat {} +
} 2>/dev/null | grep -a PLANTED
echo end
