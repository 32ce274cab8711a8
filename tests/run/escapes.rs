//! What CMD as root, fenced in, must not be able to do outside of the view.
#![expect(unsafe_code, reason = "system calls that no library offers, as an attacker makes them")]

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::project::{Project, SECRET, all, can_mount, text, until};

/// Runs [`attempt`] as CMD of `run`; what it printed.
fn attempt_as_command(project: &Project, name: &str, argument: &str, options: &[&str]) -> String {
    let mut command = project.run_with(options);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "escapes::attempt", "--nocapture"]);
    command.env("ATTEMPT", name).env("ARGUMENT", argument).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    text(&output.stdout)
}

/// Not a test: what the others run as CMD.
#[test]
#[ignore = "a program for the other tests"]
fn attempt() {
    let argument = std::env::var("ARGUMENT").unwrap_or_default();
    match std::env::var("ATTEMPT").as_deref() {
        Ok("calls") => calls(),
        Ok("abstract socket") => {
            let address = SocketAddr::from_abstract_name(argument).unwrap();
            println!("connected: {}", UnixStream::connect_addr(&address).is_ok());
        }
        Ok("shared memory") => {
            // SAFETY: no memory is attached but new memory of the segment, which is not used.
            let at = unsafe { libc::shmat(argument.parse().unwrap(), std::ptr::null(), 0) };
            println!("attached: {}", at as isize != -1);
        }
        _ => {}
    }
}

fn errno(result: libc::c_long) -> i32 {
    if result == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

/// Makes system calls, each with arguments that would go through, and prints the error numbers.
fn calls() {
    let (kind, name) = (c"user".as_ptr(), c"tollgate-test".as_ptr());
    let session = -3_i64;
    // SAFETY: strings end with a NUL and outlive the calls; the calls that succeed make a key, or
    // a namespace for this process, which ends.
    let results = unsafe {
        [
            ("add_key", errno(libc::syscall(libc::SYS_add_key, kind, name, name, 4, session))),
            ("request_key", errno(libc::syscall(libc::SYS_request_key, kind, name, name, session))),
            ("keyctl", errno(libc::syscall(libc::SYS_keyctl, 0, session, 1))),
            ("init_module", errno(libc::syscall(libc::SYS_init_module, 0, 0, 0))),
            ("finit_module", errno(libc::syscall(libc::SYS_finit_module, -1, 0, 0))),
            ("delete_module", errno(libc::syscall(libc::SYS_delete_module, 0, 0))),
            ("kexec_load", errno(libc::syscall(libc::SYS_kexec_load, 0, 0, 0, 0))),
            ("open_by_handle_at", errno(libc::syscall(libc::SYS_open_by_handle_at, -1, 0, 0))),
            ("unshare", errno(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWCGROUP))),
            ("clone3", errno(libc::syscall(libc::SYS_clone3, 0, 0))),
        ]
    };
    for (name, result) in results {
        println!("{name}: {result}");
    }
}

#[test]
fn calls_that_make_the_kernel_act_outside_are_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for options in [&[][..], &["--fence", "off"]] {
        let printed = attempt_as_command(&project, "calls", "", options);
        for call in [
            "add_key",
            "request_key",
            "keyctl",
            "init_module",
            "finit_module",
            "delete_module",
            "kexec_load",
            "open_by_handle_at",
            "unshare",
        ] {
            let expected = format!("{call}: {}\n", libc::EPERM);
            assert!(printed.contains(&expected), "{call} in {options:?}: {printed}");
        }
        // Its flags are out of a filter's sight; programs fall back to clone(2).
        assert!(printed.contains(&format!("clone3: {}\n", libc::ENOSYS)), "{printed}");
    }
}

/// Runs `script` as CMD; `$H` is the directory that DIR lies in, `$N` a name for new files.
fn run_script(project: &Project, options: &[&str], script: &str) -> Output {
    let mut command = project.run_with(options);
    command.args(["timeout", "60", "sh", "-c", script]).stdin(Stdio::null());
    let home = fs::canonicalize(project.path("")).unwrap();
    command.env("H", home).env("N", format!("tollgate-test-{}", std::process::id()));
    command.env("T", env!("CARGO_BIN_EXE_tollgate")).output().unwrap()
}

#[test]
fn everything_outside_is_read_only_for_root() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let places = "/ /etc /usr/bin /usr/sbin /opt /var /var/lib /var/spool /boot /srv /home /mnt \
                  /sys /sys/kernel /sys/fs/cgroup /sys/fs/cgroup/* /proc /proc/sys/kernel /dev $H";
    let script = format!(
        "for place in {places}; do [ -d $place ] || continue
             if (echo x >$place/$N) 2>/dev/null || mkdir $place/$N 2>/dev/null; then
                 echo wrote $place; rm -rf $place/$N
             fi
         done
         for file in /etc/passwd /etc/ld.so.preload /etc/crontab /proc/sys/kernel/core_pattern \\
             /proc/sys/kernel/modprobe /sys/kernel/uevent_helper /sys/fs/cgroup/*/release_agent \\
             /sys/fs/cgroup/*/cgroup.procs /proc/sysrq-trigger /dev/kmsg; do
             [ -e $file ] && (: >>$file) 2>/dev/null && echo opened $file
         done
         touch /etc/passwd; true"
    );
    let output = run_script(&project, &[], &script);
    assert_eq!(text(&output.stdout), "", "{}", all(&output));
    assert!(all(&output).contains("Read-only file system"), "{}", all(&output));
}

#[test]
fn device_nodes_are_used_and_not_changed() {
    if !can_mount() {
        return;
    }
    let nodes = || ["/dev/full", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty"].map(state);
    let (before, project) = (nodes(), Project::new());
    // Each change is one to what is there already, so that a failure harms nobody, but the last.
    let script = "for node in /dev/full /dev/null /dev/zero /dev/urandom /dev/tty; do
             chmod $(stat -c %a $node) $node && echo chmod $node
             chown $(stat -c %u:%g $node) $node && echo chown $node
             touch -c -r $node $node && echo touch $node
         done
         chmod u+s,g+s /dev/full && echo set-id && chmod u-s,g-s /dev/full
         setfacl -m u:1:r /dev/full 2>/dev/null && echo acl
         mount -o remount,bind,rw /dev/full && echo remounted
         echo x >/dev/null && echo x >>/dev/null && head -c 4 /dev/zero | wc -c
         head -c 4 /dev/urandom | wc -c; echo x >/dev/full || echo full";
    let output = run_script(&project, &[], script);
    assert_eq!(text(&output.stdout), "4\n4\nfull\n", "{}", all(&output));
    assert!(all(&output).contains("Read-only file system"), "{}", all(&output));
    assert_eq!(nodes(), before);
}

/// Permissions, owner and group of a node.
fn state(node: &str) -> (u32, u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(node).unwrap();
    (meta.mode(), meta.uid(), meta.gid())
}

#[test]
fn kernel_file_systems_are_closed_wherever_they_are_mounted() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir proc cg dev dir/proc dir/sys; mount -t proc proc proc; mount -t proc proc dir/proc
        mount -t sysfs sysfs dir/sys; mount -t devtmpfs dev dev; mount -t cgroup2 cg cg
        before=$(cat /proc/sys/kernel/core_pattern)
        sleep 60 & outer=$!
        set +e
        for fence in on off; do
        $T run --chdir . --fence $fence --policy policy.toml dir -- sh -c '
            for proc in proc dir/proc /proc; do
                echo \"|/bin/false\" >$proc/sys/kernel/core_pattern && echo wrote $proc
                [ -e $proc/'$outer'/cmdline ] && grep -q sleep $proc/'$outer'/cmdline && echo saw outer in $proc
                cat $proc/1/root$PWD/dir/.env; echo b >$proc/sysrq-trigger.not
            done 2>/dev/null
            for disk in $(find dev -type b) ; do
                [ \"$(head -c1 $disk | wc -c)\" = 1 ] && echo read $disk
            done
            mkdir cg/new && echo made cgroup
            cat dir/sys/kernel/uevent_seqnum && echo crossed into sysfs
            ls dir/proc | grep -q self && echo crossed into proc
            unshare -C true && mount -t cgroup2 x /tmp && echo mounted cgroups
            true' 2>/dev/null
        done
        kill $outer
        [ \"$(cat /proc/sys/kernel/core_pattern)\" = \"$before\" ] || echo core_pattern changed
        echo \"$before\" >/proc/sys/kernel/core_pattern";
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "", "{}", all(&output));
}

/// With a host name of its own, which is what CMD tries to change.
#[test]
fn a_file_of_proc_is_closed_wherever_it_is_mounted() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        echo outer >/proc/sys/kernel/hostname; mkdir place; touch name place/name place/arguments
        sleep 60 & trap \"kill $!\" EXIT
        for name in name place/name; do mount --bind /proc/sys/kernel/hostname $name; done
        mount --bind /proc/$!/cmdline place/arguments; grep -c sleep place/arguments
        for options in '--fence off' \"--allow $PWD/place:rw\"; do
            $T run --chdir . $options --policy policy.toml dir -- sh -c '
                for name in name place/name; do echo inner >$name; done 2>/dev/null
                grep -c sleep place/arguments; true'
            uname -n
        done";
    let mut command = Command::new("unshare");
    command.args(["-mu", "sh", "-ec", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.current_dir(project.path("")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), "1\n0\nouter\n0\nouter\n", "{}", all(&output));
}

#[test]
fn disks_have_no_node_anywhere() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir other; mount -t tmpfs other other
        for disk in $(find /dev -type b | head -3); do
            cp -a $disk other; cp -a $disk .; cp -a $disk dir
        done
        truncate -s 8M image; mkfs.ext2 -q image 2>/dev/null
        set +e
        for fence in on off; do
        $T run --chdir . --fence $fence --policy policy.toml dir -- sh -c '
            for disk in $(find /dev other . -type b); do
                [ \"$(head -c1 $disk | wc -c)\" = 1 ] && echo read $disk
            done
            mkdir /tmp/m; mount -o loop image /tmp/m && echo mounted an image
            losetup -f && echo got a loop device
            for device in /dev/mem /dev/port /dev/sg* /dev/mtd* /dev/dax* /dev/uinput /dev/input/* \
                /dev/loop-control /dev/vfio/* /dev/nvme*; do
                [ -c $device ] && [ \"$(stat -L -c %t,%T $device)\" != 1,3 ] && echo there is $device
            done; true' 2>/dev/null
        done";
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "", "{}", all(&output));
}

#[test]
fn processes_outside_are_out_of_reach() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("tollgate-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let printed = attempt_as_command(&project, "abstract socket", &name, &[]);
    assert!(printed.contains("connected: false"), "{printed}");
    // SAFETY: makes a segment, and removes it below; no memory is attached here.
    let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o666) };
    let printed = attempt_as_command(&project, "shared memory", &segment.to_string(), &[]);
    // SAFETY: removes the segment made above.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
    assert!(printed.contains("attached: false"), "{printed}");
}

/// A process group spans pid namespaces: the script that calls `run`, and what it is piped to, are
/// in CMD's.
#[test]
fn a_signal_to_its_process_group_stays_inside() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut command = project.run_with(&[]);
    command.args(["sh", "-c", "kill -USR2 0; kill -USR2 -1; echo not ended"]);
    let mut group = Command::new("sh");
    group.args(["-c", "\"$@\"; echo alive", "sh"]);
    group.arg(command.get_program()).args(command.get_args()).process_group(0);
    let output = group.current_dir(project.path("dir")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), "alive\n", "{}", all(&output));
}

#[test]
fn sockets_terminals_and_temporary_files_of_others_are_not_there() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("tollgate-test-{}", std::process::id());
    let places = ["/tmp", "/var/tmp", "/dev/shm", "/run"];
    let made: Vec<_> = places.iter().map(|place| Path::new(place).join(&name)).collect();
    let sockets: Vec<_> = made.iter().map(|path| UnixListener::bind(path).unwrap()).collect();
    let script = "
        for place in /tmp /var/tmp /dev/shm /run /var/run; do
            [ -e $place/$N ] && echo found $place/$N; echo x >$place/$N.new || echo cannot write $place
        done
        ls /dev/pts | grep -v ptmx; find /run -type s | grep -v /run/tollgate; true";
    let output = run_script(&project, &[], script);
    drop(sockets);
    for path in &made {
        let new = path.with_file_name(format!("{name}.new"));
        assert!(!new.exists(), "{new:?} came out");
        fs::remove_file(path).unwrap();
    }
    assert_eq!(text(&output.stdout), "", "{}", all(&output));
}

#[test]
fn what_is_written_to_home_stays_inside_and_is_told() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for name in ["home/.cache/old", "home/.profile", "home/bin/tool"] {
        fs::create_dir_all(project.path(name).parent().unwrap()).unwrap();
        fs::write(project.path(name), "old\n").unwrap();
    }
    let script = "set -e; cd; cat .profile; echo evil >>.profile; mkdir bin; echo evil >bin/tool
        mkdir .npm; echo new >.npm/x; mkdir -p .cache; echo new >.cache/new; cat .npm/x; mv bin b
        : >\"$(printf 'evil\\033[2J\\ntollgate: all is well')\"";
    let mut command = project.run_with(&[]);
    command.args(["sh", "-c", script]).env("HOME", project.path("home"));
    let output = command.output().unwrap();
    assert_eq!(text(&output.stdout), "old\nnew\n", "{}", all(&output));
    for name in ["home/.cache/old", "home/.profile", "home/bin/tool"] {
        assert_eq!(fs::read_to_string(project.path(name)).unwrap(), "old\n", "{name}");
    }
    assert!(!project.path("home/.npm").exists() && !project.path("home/.cache/new").exists());
    let said = text(&output.stderr);
    assert!(said.contains(".profile") && said.contains("gone"), "{said}");
    assert!(said.contains("/evil\\x1b[2J\\ntollgate: all is well"), "{said}");
    assert!(!said.contains(".npm"), "caches are nothing to be told of: {said}");
}

#[test]
fn what_is_named_can_be_written() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for name in ["kept", "read", "home/.cache"] {
        fs::create_dir_all(project.path(name)).unwrap();
    }
    fs::write(project.path("file"), "old\n").unwrap();
    let at = |name: &str| project.path(name).to_str().unwrap().to_owned();
    let (kept, file, read) = (at("kept") + ":rw", at("file") + ":rw", at("read") + ":ro");
    let cache = at("home/.cache") + ":rw";
    let options = ["--allow", &kept, "--allow", &file, "--allow", &read, "--allow", &cache];
    let script = "echo new >../kept/new; echo new >../file; echo x >../read/new; echo x >../new
        echo new >$HOME/.cache/new; echo x >$HOME/new; cat .env";
    let mut command = project.run_with(&options);
    let output = command.args(["sh", "-c", script]).env("HOME", at("home")).output().unwrap();
    for name in ["kept/new", "file", "home/.cache/new"] {
        assert_eq!(fs::read_to_string(project.path(name)).unwrap(), "new\n", "{}", all(&output));
    }
    for name in ["read/new", "new", "home/new"] {
        assert!(!project.path(name).exists(), "{name}: {}", all(&output));
    }
    assert!(!all(&output).contains(SECRET));
}

#[test]
fn what_cannot_be_named_is_said() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let inside = project.path("dir/docs").to_str().unwrap().to_owned() + ":rw";
    let socket = project.path("dir/socket");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, reason) in [
        (inside.as_str(), "lies inside DIR"),
        (socket.to_str().unwrap(), "only if it lies in a directory with `action = \"native\"`"),
        ("/sys:rw", "steers the kernel"),
        ("/proc/sys/kernel:rw", "steers the kernel"),
        ("/no/such/path", "does not exist"),
    ] {
        let output = project.run_with(&["--allow", path]).arg("true").output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{path}");
        assert!(text(&output.stderr).contains(reason), "{path}: {}", all(&output));
    }
    // Nor what decides over CMD, and what tells of it.
    fs::create_dir_all(project.path("logs")).unwrap();
    fs::create_dir_all(project.path("home/.config")).unwrap();
    let at = |name: &str| fs::canonicalize(project.path(name)).unwrap().display().to_string();
    let (logs, top) = (at("logs"), at(""));
    let log = format!("{logs}/log.jsonl");
    for (path, reason) in [
        (format!("{logs}:rw"), format!("CMD could change the audit log `{log}`")),
        (format!("{top}:rw"), format!("CMD could change the audit log `{log}`")),
        (at("policy.toml") + ":rw", format!("could rewrite the policy `{top}/policy.toml`")),
    ] {
        let options = ["--audit", &log, "--allow", &path];
        let output = project.run_with(&options).arg("true").output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{path}: {}", all(&output));
        assert!(text(&output.stderr).contains(&reason), "{path}: {}", all(&output));
        let read = path.replace(":rw", ":ro");
        let options = ["--audit", &log, "--allow", &read];
        let output = project.run_with(&options).arg("true").output().unwrap();
        assert!(output.status.success(), "{read}: {}", all(&output));
    }
    let (home, option) = (at("home"), at("home/.config") + ":rw");
    let mut command = project.run_with(&["--allow", &option]);
    let output = command.arg("true").env("HOME", &home).env_remove("XDG_CONFIG_HOME").output();
    let said = text(&output.unwrap().stderr);
    assert!(said.contains(&format!("can write `{home}/.config/tollgate`")), "{said}");
    let output = project.run_with(&["--fence", "off", "--allow", "/srv"]).arg("true").output();
    assert_eq!(output.unwrap().status.code(), Some(125), "there is no fence to be opened");
}

#[test]
fn without_the_fence_the_rest_can_be_written() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output =
        run_script(&project, &["--fence", "off"], "echo x >../new; mkdir -p /tmp/$N; cat .env");
    assert!(project.path("new").exists(), "{}", all(&output));
    let made = format!("/tmp/tollgate-test-{}", std::process::id());
    fs::remove_dir(made).unwrap();
    assert!(!all(&output).contains(SECRET));
}

#[test]
fn a_command_that_failed_is_told_what_is_read_only() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output = project.run_with(&[]).args(["touch", "/etc/new"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("--allow PATH:rw") && said.contains("--fence off"), "{said}");
    assert_eq!(text(&project.run_with(&[]).arg("true").output().unwrap().stderr), "");
    let output = project.run_with(&["--fence", "on"]).arg("false").output().unwrap();
    assert_eq!(text(&output.stderr), "", "whoever asks for the fence knows of it");
}

#[test]
fn root_can_drop_to_a_user() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    rustix::fs::chown(
        project.path("").as_path(),
        Some(rustix::process::Uid::from_raw(65534)),
        None,
    )
    .unwrap();
    let script = "id -u; id -g; id -G; echo $HOME; echo $USER; cat keys/id_rsa";
    let output = run_script(&project, &["--user", "nobody"], script);
    let nogroup = text(&Command::new("id").args(["-g", "nobody"]).output().unwrap().stdout);
    let nogroup = nogroup.trim();
    let home = "/nonexistent";
    assert_eq!(
        text(&output.stdout),
        format!("65534\n{nogroup}\n{nogroup}\n{home}\nnobody\n"),
        "{}",
        all(&output)
    );
    let output = run_script(&project, &["--user", "4321:4322"], "id -u; id -g; id -G");
    assert_eq!(text(&output.stdout), "4321\n4322\n4322\n", "{}", all(&output));
    for user in ["no-such-user", "1:x", "", "0x1"] {
        let output = project.run_with(&["--user", user]).arg("true").output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{user}: {}", all(&output));
        assert!(text(&output.stderr).contains("--user"), "{user}: {}", all(&output));
    }
}

#[test]
fn a_user_is_fenced_in_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        cp $T ./tollgate; mkdir home kept; echo old >home/.profile
        chmod 755 . ./tollgate; chown -R 4321:4321 dir home kept .
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        export HOME=$PWD/home XDG_RUNTIME_DIR=/run/user/4321
        setpriv --reuid 4321 --regid 4321 --clear-groups \
            ./tollgate run --chdir . --allow $PWD/kept:rw --policy policy.toml dir -- sh -c '
                id -u; echo x >>$HOME/.profile && cat $HOME/.profile; echo x >new; echo x >kept/new
                echo x >dir/new; echo x >/tmp/new; ls /tmp; echo x >$XDG_RUNTIME_DIR/x
                unshare -Urm sh -c \"mount -o remount,rw,bind $PWD; echo x >new2\"
                umount /tmp; umount $HOME; cat dir/.env' || true
        cat home/.profile; ls; ls dir kept";
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    let listed = "dir\nfuse\nhome\nkept\nmnt\npolicy.toml\ntollgate\n";
    let dirs = "dir:\na.txt\ndocs\nkeys\nlogs\nnew\n\nkept:\nnew\n";
    let expected = format!("4321\nold\nx\nnew\nold\n{listed}{dirs}");
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&text(&output.stdout)), sorted(&expected), "{all}");
    assert!(!all.contains(SECRET), "{all}");
}

/// Also of a user whom root lets keep CPUs awake: that is for the server.
#[test]
fn cmd_keeps_no_cpu_awake() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        real=$(stat -c '0x%t 0x%T' /dev/cpu_dma_latency) || { echo skipped; exit; }
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir; export HOME=/
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        mknod -m 666 latency c $real; mount --bind latency /dev/cpu_dma_latency
        for more in '' '--allow /dev/cpu_dma_latency:rw'; do
            setpriv --reuid 4321 --regid 4321 --clear-groups \
                ./tollgate run --policy none $more dir -- sh -c '
                    stat -c "0x%t 0x%T" /dev/cpu_dma_latency || ls /dev | grep latency || echo none' |
                sed "s/$real/the device/"
        done"#;
    let output = project.in_mount_namespace(script);
    let (told, all) = (text(&output.stdout), all(&output));
    if told.starts_with("skipped") || all.contains("user namespaces are not allowed") {
        return eprintln!("skipped: {all}");
    }
    assert_eq!(told, "none\nthe device\n", "{all}");
}

/// Programs that developers use, in the state in which they come.
#[test]
fn common_tools_work() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    fs::create_dir_all(project.path("dir/crate/src")).unwrap();
    fs::write(project.path("dir/crate/Cargo.toml"), "[package]\nname = 'c'\nedition = '2021'\n")
        .unwrap();
    fs::write(project.path("dir/crate/src/main.rs"), "fn main() {}\n").unwrap();
    fs::create_dir_all(project.path("dir/module")).unwrap();
    fs::write(project.path("dir/module/package.json"), r#"{"name":"m","version":"1.0.0"}"#)
        .unwrap();
    for (needed, script) in [
        (
            "git",
            "git init -q r && cd r && touch a && git add a && \
                 git -c user.name=a -c user.email=a@b commit -qm a && git log --oneline | grep -q a",
        ),
        ("cargo", "cd crate && cargo build -q --offline && target/debug/c"),
        (
            "npm",
            "mkdir app && cd app && npm install --offline --no-audit --no-fund ../module && \
                 test -e node_modules/m",
        ),
        ("npm", "npm config set fund false && npm config get fund | grep false"),
        (
            "python3",
            "python3 -c 'import tempfile; tempfile.TemporaryFile(); open(\"/tmp/x\", \"w\")'",
        ),
        ("python3", "python3 -m venv --without-pip v && v/bin/python -c 'print(1)'"),
        ("tmux", "tmux -S /tmp/s new-session -d 'true'"),
        ("script", "script -qec 'test -t 1 && stty size' /dev/null"),
    ] {
        let there = Command::new("sh").args(["-c", &format!("command -v {needed}")]).output();
        if !there.unwrap().status.success() {
            eprintln!("skipped: no {needed}");
            continue;
        }
        let output = run_script(&project, &[], script);
        assert!(output.status.success(), "{script}: {}", all(&output));
    }
}

/// Waits for what a server does beside what CMD sees of it.
#[test]
fn nothing_of_the_fence_is_left_outside() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    assert!(run_script(&project, &[], "true").status.success());
    // Other tests mount at the same time, but elsewhere.
    let top = fs::canonicalize(project.path("")).unwrap();
    until("mounts are gone", || !mounts().contains(top.to_str().unwrap()));
    assert_eq!(
        before.lines().filter(|line| line.contains(" /tmp ")).count(),
        mounts().lines().filter(|line| line.contains(" /tmp ")).count()
    );
}
