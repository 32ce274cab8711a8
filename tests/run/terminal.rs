//! CMD at its terminal, and the other terminals of its user.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal};

use crate::project::{PATIENCE, Project, all, can_mount, first_line, text, tollgate, until};
use crate::pty::Terminal;

impl Terminal {
    fn path(&self) -> PathBuf {
        rustix::termios::ttyname(&self.slave, Vec::new()).unwrap().into_string().unwrap().into()
    }
}

/// Runs a script of a shell with job control at a terminal; `$RUN` is `tollgate run` over the project.
fn at_a_terminal(project: &Project, options: &[&str], script: &str) -> Output {
    let mut terminal = Terminal::new();
    // Somebody has typed a line.
    terminal.master.write_all(b"x\n").unwrap();
    let run = project.run_with(&[&["--quiet"], options].concat());
    // A job that hangs must not hang the test.
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &PATIENCE.as_secs().to_string(), "setsid", "--ctty", "--wait"]);
    command.args(["bash", "--norc", "-mc", script]);
    let words = run.get_args().map(|word| word.to_str().unwrap());
    let words: Vec<_> = [env!("CARGO_BIN_EXE_tollgate")].into_iter().chain(words).collect();
    command.env("RUN", words.join(" ")).env("LC_ALL", "C").current_dir(project.path("dir"));
    // The shell takes the one on its standard error for its terminal.
    command.stdin(terminal.slave.try_clone().unwrap());
    command.stderr(terminal.slave.try_clone().unwrap()).output().unwrap()
}

/// The shell sees the job stopped, and has it go on; 148 is 128 and SIGTSTP.
#[test]
fn a_command_that_stops_has_its_shell_go_on() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for (what, command, printed) in [
        ("its group, as vim does", "$RUN sh -c 'kill -TSTP 0; echo on; exit 3'", "148\non\n3\n"),
        ("itself, for good", "$RUN sh -c 'kill -STOP $$; echo on; exit 3'", "148\non\n3\n"),
        (
            "a shell with a group of its own",
            "$RUN bash --norc -ic 'suspend -f; echo on; exit 3' 2>/dev/null",
            "148\non\n3\n",
        ),
        ("a run in a run", "$RUN $RUN sh -c 'kill -TSTP 0; echo on; exit 3'", "148\non\n3\n"),
        (
            "called by a script",
            "sh -c \"$RUN sh -c 'kill -TSTP 0; echo on'; echo script; exit 3\"",
            "148\non\nscript\n3\n",
        ),
        (
            "one that has the terminal, called by a script",
            "sh -c \"$RUN bash --norc -ic 'suspend -f; echo on' 2>&-; stty echo && exit 3\"",
            "148\non\n3\n",
        ),
    ] {
        let script = format!("{command}; echo $?; fg >/dev/null; echo $?");
        let session = format!("stops-{}", std::process::id());
        for options in [&[][..], &["--session", &session]] {
            let output = at_a_terminal(&project, options, &script);
            assert_eq!(text(&output.stdout), printed, "{what} {options:?}: {}", all(&output));
        }
    }
}

/// What reads the terminal in the background stops; in the foreground it goes on, all of it.
#[test]
fn a_job_that_reads_in_the_background_waits_for_the_foreground() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let command = "$RUN sh -c 'echo up; dd bs=1 count=1 2>/dev/null; echo end; exit 4'";
    let script = format!(
        "{command} & until jobs | grep -q Stopped; do sleep 0.05; done; fg %1 >/dev/null; echo $?"
    );
    let output = at_a_terminal(&project, &[], &script);
    assert_eq!(text(&output.stdout), "up\nxend\n4\n", "{}", all(&output));
}

/// The kernel keeps the processes of a session until each that joined has taken note of its end.
#[test]
fn a_session_ends_with_its_first_command_although_one_that_joined_is_stopped() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let session = format!("joined-stops-{}", std::process::id());
    let script = format!(
        "
        $RUN sh -c 'touch begun; until [ -e go ]; do sleep 0.05; done; exit 3' & first=$!
        until [ -e begun ]; do sleep 0.05; done
        ${{RUN%% *}} run --quiet --session {session} -- sh -c 'kill -STOP $$'; echo stopped $?
        touch go; wait $first; echo ended $?"
    );
    let output = at_a_terminal(&project, &["--session", &session], &script);
    assert_eq!(text(&output.stdout), "stopped 148\nended 3\n", "{}", all(&output));
}

/// Without a terminal, as from a supervisor: the rest of the process group does not stop, and SIGCONT for
/// `tollgate` alone is enough.
#[test]
fn a_command_stops_and_goes_on_with_tollgate_where_no_terminal_is() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        "$@" & until grep -q "State:.T" /proc/$!/status; do sleep 0.02; done
        echo alive; kill -CONT $!; wait $!; echo $?"#;
    for options in [&[][..], &["--session", &format!("stops-itself-{}", std::process::id())]] {
        let run = project.run_with(&[&["--quiet"], options].concat());
        let mut command = Command::new("setsid");
        command.args(["timeout", "-s", "KILL", &PATIENCE.as_secs().to_string()]);
        command.args(["sh", "-c", script, "sh"]).arg(run.get_program()).args(run.get_args());
        command.args(["sh", "-c", "kill -STOP $$; exit 7"]).current_dir(project.path("dir"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(text(&output.stdout), "alive\n7\n", "{options:?}: {}", all(&output));
    }
}

/// What is left when a test fails is ended.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `run`, which gets a script as its CMD, as the leader of a session at `terminal`.
fn leading(terminal: &Terminal, run: &Command, script: &str) -> Ended {
    // It becomes the program that it starts.
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(run.get_program()).args(run.get_args()).args(["sh", "-c", script]);
    command.current_dir(run.get_current_dir().unwrap()).env("LC_ALL", "C");
    command.stdin(terminal.slave.try_clone().unwrap()).stdout(Stdio::piped());
    Ended(command.stderr(Stdio::null()).spawn().unwrap())
}

/// The kernel tells the leader of the session alone, which is `tollgate` in `ssh -t host tollgate run ...`
/// or in a window that was opened for it.
#[test]
fn a_command_learns_that_its_terminal_is_gone_where_run_leads_the_session() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let session = format!("gone-{}", std::process::id());
    let joined = format!("gone-joined-{}", std::process::id());
    let mut other = project.run_with(&["--quiet", "--session", &joined]);
    other.args(["sh", "-c", "echo up; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = Ended(other.spawn().unwrap());
    assert_eq!(first_line(&mut other.0), "up");
    let mut joins = tollgate();
    joins.args(["run", "--quiet", "--session", &joined, "--"]).current_dir(project.path("dir"));
    let script = "trap 'echo hup >hup; exit 3' HUP; echo up; while :; do sleep 0.1; done";
    for (what, run) in [
        ("alone", project.run_with(&["--quiet"])),
        ("the first of a session", project.run_with(&["--quiet", "--session", &session])),
        ("one that joins", joins),
    ] {
        let terminal = Terminal::new();
        let mut run = leading(&terminal, &run, script);
        assert_eq!(first_line(&mut run.0), "up", "{what}");
        drop(terminal);
        until(&format!("{what}: the end"), || run.0.try_wait().unwrap().is_some());
        assert_eq!(run.0.wait().unwrap().code(), Some(3), "{what}");
        std::fs::remove_file(project.path("dir/hup")).expect(what);
    }
    drop(other.0.stdin.take());
    other.0.wait().unwrap();
}

/// As with `nohup`, from the first moment on. Such a signal is blocked while `run` starts, and waits.
#[test]
fn a_signal_that_the_caller_ignores_does_not_end_a_run_that_starts() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let session = format!("ignores-{}", std::process::id());
    for options in [&["--quiet"][..], &["--quiet", "--session", &session]] {
        let run = project.run_with(options);
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT; echo ignored; exec \"$@\"", "sh"]);
        command.arg(run.get_program()).args(run.get_args()).args(["sh", "-c", "exit 3"]);
        command.current_dir(project.path("dir")).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut run = Ended(command.spawn().unwrap());
        assert_eq!(first_line(&mut run.0), "ignored");
        let process = Pid::from_child(&run.0);
        until("the end", || {
            for signal in [Signal::HUP, Signal::INT] {
                // It may have ended, and is not waited for yet.
                let _ = rustix::process::kill_process(process, signal);
            }
            run.0.try_wait().unwrap().is_some()
        });
        assert_eq!(run.0.wait().unwrap().code(), Some(3), "{options:?}");
    }
}

/// The nodes of all terminals of a user belong to that user. What is typed at another one would be
/// read, passwords included, and what is written there shown.
#[test]
fn other_terminals_of_its_user_are_out_of_reach() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let (own, other) = (Terminal::new(), Terminal::new());
    let inside = "
        BESIDE=$PWD/../beside/${OTHER##*/}; [ -c $BESIDE ] && echo is there
        true <$BESIDE && echo read by another path; true >$BESIDE && echo wrote by another path
        tty; stty -g >/dev/null && echo has modes; echo shown >/dev/tty && echo written
        true <$OTHER && echo read the other; true >$OTHER && echo wrote to the other
        for node in /dev/* /dev/pts/*; do [ -c $node ] && [ -O $node ] && [ ! -L $node ] && echo $node; done
        echo x >/dev/shm/x && cat /dev/shm/x; ls -A /dev/shm; chmod 600 /dev/null || echo kept";
    let script = format!(
        "cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir; chown 4321 {own} {other}
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        mkdir -p beside; mount --bind /dev/pts beside
        as='setpriv --reuid 4321 --regid 4321 --clear-groups'
        export OTHER={other}; $as sh -c 'true <$OTHER && true >$OTHER && echo outside it opens'
        exec setsid --ctty --wait $as ./tollgate run --quiet --policy policy.toml dir -- \\
            sh -c '{inside}' <{own}",
        own = own.path().display(),
        other = other.path().display(),
    );
    let output = project.in_mount_namespace(&script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(
        text(&output.stdout),
        "outside it opens\nis there\n/dev/console\nhas modes\nwritten\n\
         /dev/console\n/dev/pts/ptmx\nx\nx\nkept\n",
        "{all}"
    );
}
