//! `tollgate run` and `tollgate mount` at work. Needs root and /dev/fuse: without, each test says
//! so and passes, unless `TOLLGATE_REQUIRE_MOUNT=1`.

mod agent;
mod allowed;
mod attempts;
#[path = "../support/caseless.rs"]
mod caseless;
mod choice;
mod escapes;
mod every_way;
mod explained;
mod forged;
mod groups;
mod guest;
mod handed_over;
mod hidden;
mod killed;
mod learned;
mod limits;
mod locks;
mod making;
mod masked;
mod mount;
#[path = "../support/mounting.rs"]
mod mounting;
mod moved_names;
mod native;
mod native_moved;
mod network;
mod overlay;
mod project;
#[path = "../support/pty.rs"]
mod pty;
mod raised;
mod record;
mod reload;
mod reload_moved;
mod reused_pid;
mod session;
mod settings;
mod terminal;
mod top;
mod unmounted;
mod views;

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use project::{Project, SECRET, all, can_mount, first_line, text, tollgate, until};

#[test]
fn the_command_sees_the_tree_through_the_policy() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let out = project.sh(
        "pwd; ls -A; cat a.txt; cat .env; cat keys/id_rsa; echo x >docs/guide.md; cat logs/app.log; \
         echo made >made; rm made; echo new >new",
    );
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    assert_eq!(
        stdout,
        format!("{}\na.txt\ndocs\nkeys\nlogs\nplain\nlog\n", dir.display()),
        "{stderr}"
    );
    assert!(stderr.contains(".env: No such file"), "{stderr}");
    assert!(stderr.contains("id_rsa: Permission denied"), "{stderr}");
    assert!(stderr.contains("docs/guide.md: Read-only file system"), "{stderr}");
    assert_eq!(std::fs::read_to_string(project.path("dir/new")).unwrap(), "new\n");
    assert!(!project.path("dir/made").exists());
}

#[test]
fn exit_codes_and_signals_pass_through() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    assert_eq!(project.sh("exit 7").status.code(), Some(7));
    assert_eq!(project.sh("exit 0").status.code(), Some(0));
    assert_eq!(project.sh("kill -TERM $$").status.signal(), Some(libc_sigterm()));
    assert_eq!(project.sh("kill -KILL $$").status.signal(), Some(9));
    let run = |program: &str| {
        let output = project.run().arg(program).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, message) = run("tollgate-no-such-program");
    assert_eq!(code, Some(127), "{message}");
    assert!(message.contains("CMD `tollgate-no-such-program` is not found in PATH"), "{message}");
    let (code, message) = run("./a.txt");
    assert_eq!(code, Some(126), "{message}");
    assert!(message.contains("CMD `./a.txt` cannot be executed: Permission denied"), "{message}");
    assert_eq!(run("./missing").0, Some(127));
}

/// Whoever supervises `run` tells its own signal from a failure, whenever it comes.
#[test]
fn a_signal_before_the_command_was_started_ends_run_by_it() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for try_ in 0..30 {
        let mut command = project.run_with(&["--quiet"]);
        let run = command.args(["sleep", "100"]).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(try_ * 5));
        let pid = rustix::process::Pid::from_child(&run);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = run.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc_sigterm()), "{try_}: {said}");
    }
}

fn libc_sigterm() -> i32 {
    rustix::process::Signal::TERM.as_raw()
}

#[test]
fn a_signal_to_tollgate_reaches_the_command() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "trap 'exit 33' USR1; echo up; while :; do sleep 0.01; done";
    let mut child =
        project.run().args(["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(33));
}

/// Every attempt prints what it found; none may find the secret, nor leave a trace outside.
#[test]
fn a_root_command_cannot_get_past_the_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    let core_pattern = std::fs::read("/proc/sys/kernel/core_pattern").unwrap();
    let attempts = [
        "umount $D; umount -l $D; umount -R /; cat $D/.env",
        "mount --bind $D $M; cat $M/.env",
        "mount --bind $H $M; cat $M/dir/.env",
        "mount --rbind / $M; umount -l $M$D; cat $M$D/.env; umount -R $M",
        "mount --move $D $M; cat $D/.env",
        "mount -t overlay o -o lowerdir=$H:/usr $M; cat $M/dir/.env",
        "mount -t overlay o -o lowerdir=$D:/usr $M; cat $M/.env",
        "mv $H $H.moved; cat $H.moved/dir/.env; mv $H.moved $H",
        "nsenter -t 1 -m cat $D/.env",
        "cat /proc/1/root$D/.env /proc/1/cwd/.env",
        "for p in /proc/[0-9]*; do cat $p/root$D/.env; done",
        "unshare -m sh -c 'umount -l $D; cat $D/.env'",
        "unshare -Urm sh -c 'umount -l $D; cat $D/.env'",
        "unshare -Urmpf sh -c 'umount -l $D; cat $D/.env'",
        "chroot / cat $D/.env",
        "cd ..; cat ../dir/.env dir/.env",
        "ln keys/id_rsa open; cat open",
        "mv keys/id_rsa open; cat open; mv open keys/id_rsa",
        "mv keys other; cat other/id_rsa; mv other keys",
        "ln -s ../../dir/.env link; cat link; rm link",
        "cp -a keys copied; cat copied/*; rm -r copied",
        "grep -r . $D $H; tar c $D",
        "for d in /dev/[svhx]d* /dev/vd* /dev/nvme* /dev/dm-*; do dd if=$d bs=512 count=1 | wc -c; done",
        "mknod blk b 254 0; mknod blk b 8 0; cat blk; rm blk",
        "echo '|/bin/sh' >/proc/sys/kernel/core_pattern; umount /proc/sys; mount -o remount,rw /proc/sys",
        "mount -t proc proc $M; mount -t sysfs sysfs $M; mount -t devtmpfs dev $M",
    ];
    for attempt in attempts {
        std::fs::create_dir_all(project.path("m")).unwrap();
        let mut command = project.run();
        command.args(["timeout", "10", "sh", "-c", attempt]).stdin(Stdio::null());
        command.env("D", &dir).env("H", dir.parent().unwrap()).env("M", project.path("m"));
        let output = command.output().unwrap();
        assert!(!all(&output).contains(SECRET), "`{attempt}` found it: {}", all(&output));
        let _ = std::fs::remove_dir(project.path("m"));
        assert_eq!(std::fs::read_to_string(project.path("dir/.env")).unwrap(), SECRET, "{attempt}");
    }
    assert_eq!(std::fs::read("/proc/sys/kernel/core_pattern").unwrap(), core_pattern);
    assert_eq!(std::fs::read_to_string(project.path("dir/keys/id_rsa")).unwrap(), SECRET);
}

#[test]
fn disks_are_out_of_reach_of_a_root_command() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output = project.sh("find /dev -exec test -b {} \\; -print");
    assert!(output.status.success() && output.stdout.is_empty(), "{}", all(&output));
}

#[test]
fn other_paths_to_the_same_tree_are_covered() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir whole exact below disk dir/disk
        mount --bind . whole; mount --bind dir exact; mount --bind dir/keys below
        mount -t tmpfs disk disk; mount --bind disk dir/disk; cp dir/.env disk/.env
        cat disk/.env whole/dir/.env exact/.env below/id_rsa >/dev/null
        set +e
        $T run --chdir . --policy policy.toml dir -- sh -c '
            cat disk/.env whole/dir/.env exact/.env below/id_rsa; cat exact/a.txt
            umount exact; umount -l whole; cat exact/.env whole/dir/.env'
        echo; $T run --chdir . --policy policy.toml exact -- cat dir/.env whole/dir/.env dir/a.txt";
    let output = project.in_mount_namespace(script);
    assert!(!all(&output).contains(SECRET), "{}", all(&output));
    assert_eq!(text(&output.stdout), "plain\n\nplain\n", "{}", all(&output));
}

#[test]
fn the_view_and_what_the_command_left_are_gone_afterwards() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = project.path("dir").to_str().unwrap().to_owned();
    let name = format!("tollgate-left-{}", std::process::id());
    let script =
        format!("exec 3<a.txt; (exec -a {name} sleep 100) & (setsid sleep 101 &) ; exit 0");
    let output = project.run().args(["bash", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", all(&output));
    assert!(!is_running(&name), "a process that CMD left lives on");
    assert!(!mounts().contains(&place));
}

#[test]
fn killing_tollgate_ends_the_command_and_the_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("tollgate-killed-{}", std::process::id());
    let script = format!("(exec -a {name} sleep 100) & echo up; wait");
    let mut child =
        project.run().args(["bash", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    until("the program runs", || is_running(&name));
    child.kill().unwrap();
    child.wait().unwrap();
    until("everything under CMD ends", || !is_running(&name));
    assert_eq!(std::fs::read_to_string(project.path("dir/.env")).unwrap(), SECRET);
}

fn is_running(name: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.starts_with(name.as_bytes()))
}

#[test]
fn an_unprivileged_user_gets_the_same_view_in_a_user_namespace() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // A private /dev/fuse that everybody may open, as distributions have it.
    let script = "
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        exec setpriv --reuid 4321 --regid 4321 --clear-groups \
            ./tollgate run --chdir . --policy policy.toml dir -- sh -c '
                id -u; cat dir/a.txt; cat dir/.env; cat dir/keys/id_rsa; echo x >dir/new; stat -c %u dir/new
                umount $PWD/dir; unshare -Urm umount $PWD/dir; cat dir/.env; exit 5'";
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(text(&output.stdout), "4321\nplain\n4321\n", "{all}");
    assert_eq!(output.status.code(), Some(5), "{all}");
    assert!(all.contains("not available: passthrough"), "{all}");
    assert!(all.contains("id_rsa: Permission denied"), "{all}");
}

/// The kernel refuses a whole list that names somebody whom the user namespace does not know.
#[test]
fn a_users_files_whose_access_lists_name_others_can_be_used() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let lists = r#"
import os, struct, sys
def acl(*entries):
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *one) for one in entries)
NONE = 0xffffffff
def of(user): return acl((1, 6, NONE), (2, 6, user), (4, 4, NONE), (16, 6, NONE), (32, 4, NONE))
def put(path, value, kind='access'): os.setxattr(path, 'system.posix_acl_' + kind, value)
"#;
    let outside = format!(
        "{lists}
os.mkdir('dir/d')
for path in ('dir/own', 'dir/other', 'dir/d/below'): open(path, 'w').write('text')
os.chown('dir/own', 4321, 4321)
try: put('dir/own', of(4322))
except OSError as error: sys.exit('no access lists' if error.errno == 95 else repr(error))
put('dir/other', of(4321))
put('dir/d', acl((1, 7, NONE), (4, 5, NONE), (8, 5, 4399), (16, 5, NONE), (32, 5, NONE)))
"
    );
    let inside = format!(
        "{lists}
for path in ('own', 'other', 'd/below'): print(open(path).read(), end=' ')
print(os.listdir('d'))
shown = os.getxattr('own', 'system.posix_acl_access')
print(shown == acl((1, 6, NONE), (4, 4, NONE), (16, 6, NONE), (32, 4, NONE)))
print(os.getxattr('other', 'system.posix_acl_access') == of(4321))
open('own', 'a').write('more')
for path in ('own', 'new'):
    open(path, 'a')
    try: put(path, of(4321)); print('set')
    except OSError as error: print(error.errno)
"
    );
    std::fs::write(project.path("outside.py"), outside).unwrap();
    std::fs::write(project.path("dir/inside.py"), inside).unwrap();
    let script = "
        command -v python3 >/dev/null || { echo no python3; exit; }
        chown -R 4321:4321 dir; python3 outside.py || exit; cp $T ./tollgate; chmod 755 . ./tollgate
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        setpriv --reuid 4321 --regid 4321 --clear-groups \
            ./tollgate run --quiet --chdir dir --policy none dir -- python3 inside.py
        python3 -c \"import os; print(len(os.getxattr('dir/own', 'system.posix_acl_access')))\"";
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    let missing = ["user namespaces are not allowed", "no python3", "no access lists"];
    if missing.iter().any(|what| all.contains(what)) {
        eprintln!("skipped: {all}");
        return;
    }
    // EOVERFLOW; beneath, all five entries are there.
    let expected = "text text text ['below']\nTrue\nTrue\n75\nset\n44\n";
    assert_eq!(text(&output.stdout), expected, "{all}");
}

/// The processes that hold the mount fail, too, when there is no view: that is not the reason.
#[test]
fn a_view_that_an_unprivileged_user_cannot_have_is_the_reason_inside_a_fence_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        cp $T dir/t; chmod 755 . dir/t; chown -R 4321:4321 dir; cd dir
        mknod -m 666 ../fuse c 10 229; mount --bind ../fuse /dev/fuse
        exec setpriv --reuid 4321 --regid 4321 --clear-groups unshare --map-current-user --keep-caps sh -c '
            echo 0 > /proc/sys/user/max_fanotify_groups || exit
            exec setpriv --ambient-caps -all --inh-caps -all \
                ./t run --quiet --policy none . -- ./t run --watch on --policy none . -- true'";
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(output.status.code(), Some(125), "{all}");
    assert!(all.contains("changes behind the view cannot be watched: "), "{all}");
    assert!(all.contains(" with `--watch on`; leave that out"), "{all}");
    assert!(all.contains("fs.fanotify.max_user_groups"), "{all}");
}

/// Whoever read the messages may be gone: what is logged then ends no thread.
#[test]
fn a_standard_error_that_nobody_reads_does_no_harm() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = project.run_with(&["--verbose"]);
    command.args(["cat", "a.txt"]).stdin(Stdio::null()).stderr(writer);
    let output = command.output().unwrap();
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("plain\n", Some(0)));
}

#[test]
fn run_works_inside_run() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    std::fs::write(project.path("dir/docs/.env"), SECRET).unwrap();
    let script = "$T run --chdir . --policy ../policy.toml docs -- sh -c 'ls -A docs; cat docs/guide.md; exit 6'";
    let mut command = project.run();
    command.args(["sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.output().unwrap();
    assert_eq!(text(&output.stdout), "guide.md\nguide\n", "{}", all(&output));
    assert_eq!(output.status.code(), Some(6), "{}", all(&output));
}

#[test]
fn every_refused_open_is_in_the_audit_log_when_run_ends() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let log = project.path("audit.jsonl");
    let output = tollgate()
        .args(["run", "--audit-level", "refused", "--audit"])
        .arg(&log)
        .arg("--policy")
        .arg(project.path("policy.toml"))
        .arg(project.path("dir"))
        .args(["--", "sh", "-c", "for i in $(seq 500); do true <keys/id_rsa; done"])
        .current_dir(project.path("dir"))
        .output()
        .unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    let records: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let about_opens = || records.iter().filter(|record| record["operation"] == "open");
    let count: u64 = about_opens().map(|record| record["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(count, 500, "{}", all(&output));
    for record in about_opens() {
        assert_eq!(record["path"], "keys/id_rsa");
        assert_eq!((&record["errno"], &record["rule"]), (&"EACCES".into(), &"keys".into()));
        assert_eq!(record["uid"], 0);
    }
}

/// A user namespace maps one group; files of one's own in another one can be written all the same.
#[test]
fn files_of_a_supplementary_group_can_be_written() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output = project.in_mount_namespace(
        "cp $T ./tollgate; chmod 755 . ./tollgate; mkdir dir/shared; echo 1 >dir/shared/own
        echo 1 >dir/shared/others
        chown -R 4321:4322 dir; chmod 2770 dir/shared; chmod 660 dir/shared/*
        chown 4323:4322 dir/shared/others
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; export HOME=$PWD
        unset XDG_RUNTIME_DIR
        setpriv --reuid 4321 --regid 4321 --groups 4322 \
            ./tollgate run --quiet --policy none dir -- sh -c 'echo 2 >>shared/own
            echo 3 >shared/new; chmod 600 shared/new; mv shared/new shared/other
            echo 4 >>shared/others; stat -c %u:%g shared/own
            ../tollgate why --write shared/others; ../tollgate why --write shared/own' || true
        stat -c %u:%g:%a dir/shared/own dir/shared/other; cat dir/shared/*",
    );
    let said = all(&output);
    if said.contains("user namespaces are not allowed") {
        eprintln!("skipped: {said}");
        return;
    }
    let out = text(&output.stdout);
    let (told, out): (Vec<_>, Vec<_>) = out.lines().partition(|line| line.starts_with('/'));
    assert_eq!(out, ["4321:4321", "4321:4322:660", "4321:4322:600", "3", "1", "1", "2"], "{said}");
    assert!(
        told[0].contains("no (EACCES)") && told[0].contains("no supplementary group"),
        "{said}"
    );
    assert!(told[1].contains(": yes, "), "{said}");
}
