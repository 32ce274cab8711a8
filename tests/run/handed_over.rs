//! What CMD has from the start without opening it: descriptors of whoever called `run`, and device
//! nodes in a place that `--allow` names.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::project::{Project, SECRET, all, can_mount, text};

/// A file, a directory and a device beneath the view, open when `run` is called.
#[test]
fn descriptors_of_the_caller_are_not_handed_on() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let look = "ls /proc/self/fd | grep -vx '[0-3]'
        for n in 5 7 8 9; do [ -e /proc/self/fd/$n ] && echo there is $n; done
        cat <&7; cat /proc/self/fd/8/keys/id_rsa; cd /proc/self/fd/8 && cat .env; head -c1 <&9; true";
    let script = format!(
        "cp $T tollgate; chmod 755 . tollgate; mknod node c 1 5; echo \"{}\" >look
         mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
         exec 5<>audit.jsonl 7<dir/keys/id_rsa 8<dir 9<node
         for fence in on off; do
             ./tollgate run --chdir . --fence $fence --policy policy.toml dir -- sh look || true
         done
         chown -R 4321:4321 dir
         setpriv --reuid 4321 --regid 4321 --clear-groups \
             ./tollgate run --chdir . --policy policy.toml dir -- sh look || true",
        look.replace('$', "\\$")
    );
    let output = project.in_mount_namespace(&script);
    let said = all(&output);
    assert!(output.status.success() && !said.contains(SECRET), "{said}");
    assert_eq!(text(&output.stdout), "", "{said}");
    assert!(said.contains("7: Bad file descriptor"), "{said}");
}

/// A directory as a stream would be a way around the view: `cd /proc/self/fd/0`.
#[test]
fn a_directory_is_no_stream() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let place = std::fs::File::open(project.path("dir")).unwrap();
    let script = "cat /proc/self/fd/0/keys/id_rsa";
    let output = project.run().args(["sh", "-c", script]).stdin(place).output().unwrap();
    assert!(!output.status.success(), "{}", all(&output));
    assert!(!all(&output).contains(SECRET), "{}", all(&output));
}

/// What is open as a place alone could be opened for anything.
#[test]
fn a_place_is_no_stream() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut options = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc_o_path());
    let place = options.open(project.path("dir/keys/id_rsa")).unwrap();
    let script = "cat /proc/self/fd/0; echo x >>/proc/self/fd/0";
    let output = project.run().args(["sh", "-c", script]).stdin(place).output().unwrap();
    assert!(all(&output).contains("standard input is a place"), "{}", all(&output));
    assert!(!output.status.success() && !all(&output).contains(SECRET), "{}", all(&output));
    assert_eq!(std::fs::read_to_string(project.path("dir/keys/id_rsa")).unwrap(), SECRET);
}

fn libc_o_path() -> i32 {
    i32::try_from(rustix::fs::OFlags::PATH.bits()).unwrap()
}

/// Runs `place/caller`, a script of whoever calls `run`, as root and as a user: `$run $over` begins a
/// call.
fn as_root_and_as_a_user(project: &Project) -> [std::process::Output; 2] {
    let of = |user: &str| {
        let script = format!(
            "cp $T tollgate; chmod 755 . tollgate; chown -R 4321:4321 dir place
             [ -e fuse ] || mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
             export HOME=/ run='../tollgate run --chdir . --quiet' over='--policy ../policy.toml ../dir'
             cd place; {user} sh caller"
        );
        project.in_mount_namespace(&script)
    };
    [of(""), of("setpriv --reuid 4321 --regid 4321 --clear-groups")]
}

fn write(project: &Project, name: &str, text: &str) {
    let path = project.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// By its name in /proc/self/fd it could be opened for writing, by the descriptor its mode be changed.
#[test]
fn a_file_that_is_the_input_is_not_changed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let attempts = "echo echo ESCAPED >>/proc/self/fd/0; : >/proc/self/fd/0; : 1<>/dev/stdin
        chmod 777 /proc/self/fd/0; touch -d 2001-01-01 /dev/stdin; truncate -s 0 /dev/stdin; true";
    write(&project, "dir/try", attempts);
    write(&project, "dir/await", "until [ -e $1 ]; do sleep 0.05; done");
    write(&project, "place/job", "$run $options -- sh ../dir/try\necho outside goes on\n");
    let caller = "
        chmod 640 job; touch -d 2020-02-02 job; cp -p job before; export options=\"$over\"
        sh <job; options=\"--fence off $over\"; sh <job
        $run --session s$$ $over -- sh -c 'cd ../dir; touch up; timeout 20 sh await done' &
        timeout 20 sh ../dir/await ../dir/up
        options=\"--session s$$\"; sh <job; touch ../dir/done; wait; rm ../dir/done ../dir/up
        cmp job before; stat -c '%a %Y' job; rm -f before";
    write(&project, "place/caller", caller);
    for output in as_root_and_as_a_user(&project) {
        let (out, said) = (text(&output.stdout), all(&output));
        let goes_on = "outside goes on\n".repeat(3);
        assert_eq!(out, format!("{goes_on}640 1580601600\n"), "{said}");
        assert!(said.contains("Read-only file system") && !said.contains("ESCAPED"), "{said}");
    }
}

/// As if `run` were not there: whoever shares the descriptor goes on where CMD stopped.
#[test]
fn the_caller_goes_on_reading_where_the_command_stopped() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let job = "$run $over -- sh -c 'read line; echo took $line'\ndata\necho next\n";
    write(&project, "place/job", job);
    let caller = "
        seq 1 9 >file; (read first; echo $first; $run $over -- head -n 2; cat) <file
        bash <job; $run $over -- cat <<END\nhere\nEND
        rm -f out; $run $over -- sh -c 'echo x >&2; cat; echo y' <>file >>out 2>>out; wc -l <out";
    write(&project, "place/caller", caller);
    for output in as_root_and_as_a_user(&project) {
        let lines: Vec<_> = (1..10).map(|n| n.to_string()).collect();
        let expected = format!("{}\ntook data\nnext\nhere\n11\n", lines.join("\n"));
        assert_eq!(text(&output.stdout), expected, "{}", all(&output));
    }
}

/// Without privilege it is opened again by its path, where something else may be.
#[test]
fn an_input_that_cannot_be_opened_again_is_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        cp $T tollgate; chmod 755 . tollgate; mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        echo one >one; echo two >two; chown -R 4321:4321 dir; exec 9<one; mount --bind two one
        export HOME=/; user='setpriv --reuid 4321 --regid 4321 --clear-groups'
        run='./tollgate run --chdir . --policy policy.toml'
        $user $run dir -- cat <&9; $user $run --require fence dir -- echo started <&9 || true
        exec 8<policy.toml; $run dir -- sh -c 'chmod 777 /dev/stdin' <&8 || true";
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    assert!(text(&output.stdout).starts_with("one\n") && !said.contains("started"), "{said}");
    assert!(said.contains("warning: standard input, `") && said.contains("/one`"), "{said}");
    assert!(said.contains("--require fence: standard input, `"), "{said}");
    assert!(said.contains("another file is at its path"), "{said}");
}

/// Nobody finds it by a name, and who else has it open would read what CMD wrote.
#[test]
fn an_input_without_a_name_that_stays_as_it_is_is_no_whole_fence() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        import os, subprocess, sys
        def run(descriptor, *options):
            begin = [os.environ['T'], 'run', '--policy', 'policy.toml', *options, 'dir', '--', 'cat']
            subprocess.run(begin, stdin=descriptor)
        memory = os.memfd_create('x')
        os.write(memory, b'read\\n')
        again = lambda of: os.open(f'/proc/self/fd/{of}', os.O_RDONLY)
        run(again(memory)); run(again(memory), '--require', 'fence')
        file = os.open('file', os.O_RDWR | os.O_CREAT); os.write(file, b'deleted\\n')
        plain = again(file); os.unlink('file')
        run(plain)";
    let script: String = script.lines().skip(1).map(|line| format!("{}\n", &line[8..])).collect();
    let mut command = Command::new("python3");
    command.args(["-c", &script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let Ok(output) = command.current_dir(project.path("")).output() else {
        eprintln!("skipped: no python3");
        return;
    };
    let said = all(&output);
    assert_eq!(text(&output.stdout), "read\ndeleted\n", "{said}");
    assert!(
        said.contains("--require fence: standard input, `") && said.contains("`cat | "),
        "{said}"
    );
    assert!(!said.contains("warning: standard input"), "{said}");
}

/// Root's CMD could change who may use `/dev/null`, for all of the machine.
#[test]
fn the_null_device_as_a_stream_is_used_and_not_changed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mknod -m 666 null c 1 3; exec 9<>null
        $T run --chdir . --policy policy.toml dir -- sh -c '
            chmod 600 /proc/self/fd/0; chmod 600 /proc/self/fd/1; chmod 600 /proc/self/fd/2
            cat; echo gone; echo gone >/dev/stdout; ! chmod 600 /proc/self/fd/0' <&9 >&9 2>>null
        stat -c %a null";
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "666\n", "{}", all(&output));
}

/// Allowing a directory allows its files. A disk that has a node there stays out of reach.
#[test]
fn nodes_in_an_allowed_place_do_not_open() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir place; mknod -m 666 place/disk b 7 0; mknod -m 666 place/memory c 1 1
        mknod -m 666 place/zero c 1 5; echo file >place/file
        for fence in on off; do for how in ro rw; do
            $T run --chdir . --fence $fence --allow $PWD/place:$how --policy policy.toml dir -- sh -c '
                cat place/file
                for node in disk memory zero; do
                    [ \"$(head -c1 place/$node | wc -c)\" = 1 ] && echo read $node
                    ln place/$node dir/$node; head -c1 dir/$node && echo linked $node
                done; true' || true
        done; done";
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    assert!(output.status.success(), "{said}");
    let read: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert!(!read.is_empty() && read.iter().all(|line| line == "file"), "{said}");
}

/// As in programs that are started without `run`; also of the signals that `run` itself reads.
#[test]
fn signals_are_ignored_and_blocked_as_by_the_caller() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for options in [
        &["--default-signal=PIPE"][..],
        &["--ignore-signal=PIPE,HUP,XFSZ", "--block-signal=USR1,USR2,CHLD,TSTP,42"],
        // Whose children the kernel forgets: how CMD ended is to be known all the same.
        &["--ignore-signal=CHLD"],
    ] {
        let look = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"];
        let looked = |program: &[&std::ffi::OsStr]| {
            let mut command = Command::new("env");
            command.args(options).args(program).args(look).current_dir(project.path("dir"));
            let output = command.stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{}", all(&output));
            text(&output.stdout)
        };
        let run = project.run();
        let run: Vec<_> = [run.get_program()].into_iter().chain(run.get_args()).collect();
        assert_eq!(looked(&run), looked(&[]), "{options:?}");
    }
}

/// A script's time limit, which no process sends.
#[test]
fn a_timer_that_was_set_before_ends_the_command() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "$SIG{ALRM} = 'DEFAULT'; alarm 1; exec @ARGV";
    let begun = Instant::now();
    let status = Command::new("perl")
        .args(["-e", script, env!("CARGO_BIN_EXE_tollgate"), "run", "--quiet", "--policy", "none"])
        .arg(project.path("dir"))
        .args(["--", "sleep", "20"])
        .status();
    let Ok(status) = status else {
        println!("skipped: there is no perl here");
        return;
    };
    assert_eq!(status.signal(), Some(libc::SIGALRM));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}
