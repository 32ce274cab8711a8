//! What CMD has from the start without opening it: descriptors of whoever called `run`, and device
//! nodes in a place that `--allow` names.

use std::process::{Command, Stdio};

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
