//! `--session`: a second `run` in the fence of the first; and `tollgate why` inside.

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::project::{Project, SECRET, all, can_mount, first_line, text, tollgate, until};

/// The first `run` of a session, which stays until it is dropped.
struct First {
    child: Child,
    name: String,
}

impl First {
    fn start(project: &Project, name: &str, options: &[&str]) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let mut options = options.to_vec();
        options.extend(["--session", &name]);
        let mut command = project.run_with(&options);
        command.args(["sh", "-c", "echo made >/tmp/inside; echo up; read line"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(first_line(&mut child), "up");
        Self { child, name }
    }

    fn join(&self, project: &Project, options: &[&str], script: &str) -> Output {
        let mut command = tollgate();
        command.args(["run", "--session", &self.name]).args(options);
        command.args(["--", "sh", "-c", script]).current_dir(project.path("dir"));
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn end(mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// Its socket is there until the last of its processes has ended.
#[test]
fn who_meets_one_that_is_ending_waits_and_is_the_first() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let project = Project::new();
    let name = format!("ending-{}", std::process::id());
    let directory = std::path::Path::new("/run/tollgate-sessions");
    let _ = std::fs::DirBuilder::new().mode(0o700).create(directory);
    let path = directory.join(format!("{name}.sock"));
    // Nor do others' children hold it.
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let ending = std::thread::spawn(move || {
        // Two are let in and told nothing.
        (0..2).for_each(|_| drop(rustix::net::accept(&listener).unwrap()));
    });
    let mut command = project.run_with(&["--session", &name]);
    let output = command.args(["echo", "up"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), "up\n", "{}", all(&output));
    ending.join().unwrap();
}

/// The names of files have any bytes. `--allow` names one by a link.
#[test]
fn a_session_has_paths_that_are_not_utf8() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        d=$(printf 'd\377'); open=$(printf "$PWD/open\376"); mkdir "$d" "$open"; echo here >"$open/file"
        ln -s "$open" open
        run() { "$T" run --quiet --session bytes-$$ "$@"; }
        run --policy none --allow open:rw "$d" -- sh -c '
            cd "$TOLLGATE_RUN"; : >up; for i in $(seq 400); do [ -e go ] && break; sleep 0.05; done' &
        for i in $(seq 400); do [ -e "$d/up" ] && break; kill -0 $! || exit 1; sleep 0.05; done
        cd "$d"
        run -- sh -c 'ls up; cat "$0/file"; echo made >"$0/made"; : >go' "$open"
        wait; cat "$open/made""#;
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "up\nhere\nmade\n", "{}", all(&output));
}

#[test]
fn a_second_run_joins_the_fence() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let first = First::start(&project, "joins", &[]);
    let script = "cat /tmp/inside a.txt; cat .env keys/id_rsa; pwd; echo x >/etc/x; \
                  umount -l $TOLLGATE_RUN; cat .env; echo new >new; exit 7";
    let output = first.join(&project, &[], script);
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    let expected = format!("made\nplain\n{}\n", dir.display());
    assert_eq!(text(&output.stdout), expected, "{}", all(&output));
    assert_eq!(output.status.code(), Some(7), "{}", all(&output));
    assert!(!all(&output).contains(SECRET));
    assert_eq!(std::fs::read_to_string(project.path("dir/new")).unwrap(), "new\n");
    let output = first.join(&project, &[], "kill -TERM $$");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(15), "{}", all(&output));
    // The same processes are seen, and nothing of the first can be changed by options.
    let output = first.join(&project, &[], "ls -d /proc/[0-9]* | wc -l; cat /proc/2/comm");
    assert!(text(&output.stdout).contains("sh"), "{}", all(&output));
    let output = first.join(&project, &["--threads", "3", "--watch=off"], "cat a.txt");
    assert!(all(&output).contains("without effect here: --threads, --watch"), "{}", all(&output));
    assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
    let output = first.join(&project, &["--seal-passphrase-file", "/none"], "true");
    let named = "without effect here: --seal-passphrase-file";
    assert!(all(&output).contains(named), "{}", all(&output));
    let output = first.join(&project, &["--env", "HELLO=there"], "echo $HELLO");
    assert_eq!(text(&output.stdout), "there\n", "{}", all(&output));
    assert!(!all(&output).contains("without effect"), "{}", all(&output));
    let output = first.join(&project, &["--allow", "/etc:rw"], "true");
    assert_eq!(output.status.code(), Some(125));
    assert!(all(&output).contains("leave out --allow"), "{}", all(&output));
    let mut missing = tollgate();
    missing.args(["run", "--session", &first.name, "--", "no-such-program"]);
    let output = missing.current_dir(project.path("dir")).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", all(&output));
    let name = first.name.clone();
    first.end();
    // Whoever comes then is the first.
    let mut command = project.run_with(&["--session", &name]);
    let output = command.args(["sh", "-c", "cat /tmp/inside"]).output().unwrap();
    assert!(all(&output).contains("No such file"), "{}", all(&output));
}

/// What is said to who joins has no maximum, as the options of the first have none.
#[test]
fn a_second_run_joins_where_many_long_paths_are_allowed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let long = format!("allowed/{0}/{0}/{0}", "x".repeat(250));
    let options: Vec<String> = (0..40)
        .flat_map(|number| {
            let path = project.path(&format!("{long}/{number}"));
            std::fs::create_dir_all(&path).unwrap();
            let path = std::fs::canonicalize(path).unwrap();
            ["--allow".to_owned(), format!("{}:rw", path.display())]
        })
        .collect();
    assert!(options.concat().len() > 16 << 10);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let first = First::start(&project, "long", &options);
    for path in [options[1], options[79]] {
        let script = format!("cat a.txt; echo x >{}/made", path.strip_suffix(":rw").unwrap());
        let output = first.join(&project, &[], &script);
        assert!(output.status.success(), "{}", all(&output));
        assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
    }
    first.end();
    assert!(project.path(&format!("{long}/39/made")).exists());
}

/// To connect to a socket it is enough to read it.
#[test]
fn addresses_of_allowed_sockets_are_passed_on_to_the_first_and_to_who_joins() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let sockets = project.path("sockets");
    std::fs::create_dir(&sockets).unwrap();
    for name in ["agent", "bus", "docker", "tmux"] {
        std::fs::write(sockets.join(name), "").unwrap();
    }
    let link = project.path("link");
    std::os::unix::fs::symlink("sockets", &link).unwrap();
    let place = std::fs::canonicalize(project.path("sockets")).unwrap();
    let place = place.to_str().unwrap();
    let variables = [
        ("SSH_AUTH_SOCK", format!("{place}/agent")),
        ("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={place}/bus,guid=1")),
        ("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path=/none;unix:guid=1,path={place}/bus")),
        ("DOCKER_HOST", format!("unix://{}/docker", link.display())),
        ("TMUX", format!("{place}/tmux,1,0")),
        ("KITTY_LISTEN_ON", "unix:/none/kitty".to_owned()),
        ("NVIM", format!("/none,{place}-of-another")),
    ];
    let script = "env | grep -E '^(SSH_|DBUS_|DOCKER_|TMUX|KITTY|NVIM)' | sort";
    let first = First::start(&project, "addresses", &["--allow", place]);
    let alone = project.run_with(&["--quiet", "--allow", place]);
    let mut joins = tollgate();
    joins.args(["run", "--quiet", "--session", &first.name, "--"]);
    let mut expected: Vec<_> =
        variables[..5].iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    expected.sort();
    for mut command in [alone, joins] {
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.args(["sh", "-c", script]).current_dir(project.path("dir"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(text(&output.stdout), expected.concat(), "{}", all(&output));
    }
    first.end();
}

/// What is missing of a fence that has to be whole is missing for who joins, too.
#[test]
fn who_joins_a_session_that_requires_the_fence_hands_nothing_in_that_breaks_it() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // Nobody finds it by a name, and who else has it open would read what CMD wrote.
    let memory = rustix::fs::memfd_create(c"x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&memory, b"read\n").unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    for (require, expected) in [(&[][..], "read\n"), (&["--require", "fence"], "")] {
        let first = First::start(&project, "requires", require);
        let mut command = tollgate();
        command.args(["run", "--session", &first.name, "--", "cat"]);
        command.stdin(std::fs::File::open(&path).unwrap()).current_dir(project.path("dir"));
        let output = command.output().unwrap();
        let said = all(&output);
        assert_eq!(text(&output.stdout), expected, "{said}");
        assert_eq!(said.contains("--require fence: standard input"), !require.is_empty(), "{said}");
        first.end();
    }
}

#[test]
fn the_first_says_what_is_writable_and_how_to_join() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    std::fs::create_dir(project.path("cache")).unwrap();
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    let cache = std::fs::canonicalize(project.path("cache")).unwrap();
    let name = format!("banner-{}", std::process::id());
    let allowed = format!("{}:rw", cache.display());
    let said = |options: &[&str]| {
        let options = [&["--session", &name], options].concat();
        let output = project.run_with(&options).arg("true").stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        text(&output.stderr)
    };
    let join = format!("join it with `tollgate run --session {name} -- CMD`");
    let begin = format!("session `{name}`: CMD writes to `{}`", dir.display());
    let fenced = said(&["--allow", &allowed]);
    let also = format!("{begin}, `{}`; {join}", cache.display());
    assert!(fenced.contains(&also), "{fenced}");
    let unfenced = said(&["--fence", "off"]);
    let everywhere = format!("{begin}, and wherever else its user may; {join}");
    assert!(unfenced.contains(&everywhere), "{unfenced}");
    assert_eq!(said(&["--quiet"]), "");
}

#[test]
fn what_joined_ends_with_the_session() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let first = First::start(&project, "ends", &["--network", "off"]);
    let mut command = tollgate();
    command.args(["run", "--session", &first.name, "--", "sh", "-c"]);
    command.arg("ls /sys/class/net >/dev/null; cat /proc/net/dev | grep -c :; sleep 100");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut second = command.current_dir(project.path("dir")).spawn().unwrap();
    assert_eq!(first_line(&mut second), "1", "it has the network of the session");
    first.end();
    assert!(!second.wait().unwrap().success());
}

/// As by Ctrl-Z: the terminal stops its process group, and the shell sees the job stopped.
#[test]
fn others_go_on_while_the_first_is_stopped() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("stops-{}", std::process::id());
    let mut command = project.run_with(&["--session", &name]);
    command.args(["sh", "-c", "echo up; read line"]).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let group = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(group, Signal::TSTP).unwrap();
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next()
    };
    until("that the job is stopped", || state() == Some('T'));
    let first = First { child, name };
    let output = first.join(&project, &[], "cat a.txt");
    assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
    rustix::process::kill_process_group(group, Signal::CONT).unwrap();
    first.end();
}

#[test]
fn killing_the_first_ends_the_session() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut first = First::start(&project, "killed", &[]);
    let mut command = tollgate();
    command.args(["run", "--session", &first.name, "--", "sh", "-c", "echo in; sleep 1000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut second = command.current_dir(project.path("dir")).spawn().unwrap();
    assert_eq!(first_line(&mut second), "in");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(!second.wait().unwrap().success());
    // Whoever comes then is the first, as soon as the server's last thread is gone.
    until("that the session is free", || {
        all(&first.join(&project, &[], "cat /tmp/inside")).contains("No such file")
    });
}

#[test]
fn a_user_joins_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("user-{}", std::process::id());
    let script = format!(
        "cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; export HOME=/
        unset XDG_RUNTIME_DIR; mkfifo go; chmod 666 go
        as='setpriv --reuid 4321 --regid 4321 --clear-groups'
        $as ./tollgate run --session {name} --policy policy.toml dir -- \
            sh -c 'echo made >/tmp/inside; echo up; cat' <go >up &
        exec 3>go; i=0; until grep -q up up || [ $i -gt 300 ]; do sleep 0.1; i=$((i + 1)); done
        $as ./tollgate run --session {name} -- sh -c 'cat /tmp/inside dir/.env dir/a.txt; id -u' \
            || true
        $as ./tollgate run --session {name} -- sh -c 'cat .env; cat a.txt'
        exec 3>&-; wait"
    );
    let output = project.in_mount_namespace(&script);
    let said = all(&output);
    if said.contains("user namespaces are not allowed") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(text(&output.stdout), "made\n4321\nplain\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
}

#[test]
fn why_names_the_rule_or_the_option() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    std::fs::write(project.path("seen"), "x").unwrap();
    let script = "$T why .env; $T why a.txt; $T why --write docs/guide.md; $T why /etc/passwd; \
                  $T why --write /etc/passwd; $T why /tmp/x; $T why ~/.ssh/id; $T why --write ../x; \
                  $T why --write /dev/null; $T why /; $T why --write /; \
                  $T why --write /proc/sys/kernel/core_pattern; $T why --write /var/tmp/x; \
                  $T why ../seen; $T why ../none";
    let mut command = project.run();
    command.args(["sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.env("HOME", "/root").stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "no (ENOENT), by rule `env`",
        "yes, by the default",
        "no (EROFS), by rule `docs`",
        "yes, outside of DIR",
        "no (EROFS), outside of DIR all is read-only; `--allow /etc/passwd:rw`",
        "no (ENOENT), there is nothing at this path (a private place",
        "`--allow /root/.ssh/id` shows the one outside",
        "no (EROFS), what lies around DIR in a private place is shown, read-only; `--allow /",
        "yes, CMD uses devices",
        "yes, outside of DIR",
        "no (EROFS), outside of DIR all is read-only; `--fence off`",
        "no (EROFS), what steers the kernel",
        "yes, a private place",
        "yes, what lies around DIR",
        "no (ENOENT), there is nothing at this path (what lies around DIR",
    ];
    assert_eq!(lines.len(), expected.len(), "{}", all(&output));
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{part} is not in: {said}");
    }
    let mut command = project.run();
    let json = command.arg(env!("CARGO_BIN_EXE_tollgate")).args(["why", "--json", ".env"]);
    let json: serde_json::Value =
        serde_json::from_slice(&json.stdin(Stdio::null()).output().unwrap().stdout).unwrap();
    assert_eq!((json["allowed"].as_bool(), json["errno"].as_str()), (Some(false), Some("ENOENT")));
    let outside = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["why", "x"])
        .env_remove("TOLLGATE_RUN")
        .output()
        .unwrap();
    assert_eq!(outside.status.code(), Some(1));
    assert!(all(&outside).contains("not inside of `tollgate run`"), "{}", all(&outside));
}

/// Names of any bytes, of files and of DIR itself.
#[test]
fn why_answers_for_names_that_are_not_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    if !can_mount() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"a\xffb");
    let dir = home.path().join(odd);
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join(odd), "").unwrap();
    let mut command = tollgate();
    command.args(["run", "--policy", "none"]).arg(&dir).arg("--").current_dir(&dir);
    command.arg(env!("CARGO_BIN_EXE_tollgate")).arg("why").arg(odd);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    assert!(text(&output.stdout).contains(": yes, by the default"), "{}", all(&output));
}

/// A name alone does not say what is refused for what it holds or leads to.
#[test]
fn why_says_no_where_contents_or_targets_are_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let rule = "[[rule]]\nname = 'held'\npath = '**'\nkind = 'file'\naction = 'deny'\n\
                content = { regex = 'held back' }\n\
                [[rule]]\nname = 'link'\npath = 'to-no-link'\nkind = 'symlink'\naction = 'deny'\n";
    let policy = std::fs::read_to_string(project.path("policy.toml")).unwrap();
    std::fs::write(project.path("policy.toml"), rule.to_owned() + &policy).unwrap();
    std::fs::write(project.path("dir/held"), "held back\n").unwrap();
    std::os::unix::fs::symlink("keys/id_rsa", project.path("dir/to-key")).unwrap();
    std::os::unix::fs::symlink("a.txt", project.path("dir/to-text")).unwrap();
    std::os::unix::fs::symlink("a.txt", project.path("dir/to-no-link")).unwrap();
    let answers = |name: &str| {
        let mut command = project.run();
        command.arg(env!("CARGO_BIN_EXE_tollgate")).args(["why", name]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        text(&output.stdout)
    };
    for name in ["held", "to-key"] {
        let answer = answers(name);
        assert!(answer.contains(": no (EACCES), allowed by its name, but"), "{name}: {answer}");
    }
    let answer = answers("to-no-link");
    assert!(answer.contains("a rule about symbolic links refuses this one"), "{answer}");
    assert!(answers("to-text").contains(": yes"), "{}", answers("to-text"));
    assert!(answers("docs").contains(": yes"), "{}", answers("docs"));
}

/// What contains the directory of sockets shows it empty, and keeps it.
#[test]
fn a_view_of_run_does_not_show_the_sockets_of_sessions() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output = project.in_mount_namespace(
        "mount -t tmpfs none /run
        printf '[[view]]\ndir = \"/run\"\n' >run.toml
        mkdir -p -m 700 /run/user/4321/tollgate; touch /run/user/4321/tollgate/view-1.sock
        $T run --quiet --session one --policy none dir -- sh -c 'echo in; sleep 60' >log &
        until grep -q in log; do sleep 0.1; done
        at() {
            $T run --quiet \"$@\" -- sh -c 'cd /run; ls -A tollgate-sessions user/4321/tollgate
                rm -rf tollgate-sessions/* tollgate-sessions tollgate/* user/4321/tollgate
                mv tollgate-sessions gone; mv tollgate gone; echo x >written' || true
            test -S /run/tollgate-sessions/one.sock; ls /run/tollgate/view-*.sock >/dev/null
            test -e /run/user/4321/tollgate/view-1.sock; rm /run/written; echo kept
        }
        at --policy run.toml dir; at --policy none /run
        $T run --session one -- echo joined; kill $!; wait",
    );
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let lines: Vec<_> =
        out.lines().filter(|line| !line.ends_with(':') && !line.is_empty()).collect();
    assert_eq!(lines, ["kept", "kept", "joined"], "{out}{err}");
}
