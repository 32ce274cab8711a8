//! `action = "native"`: what a directory that is mounted from below promises, and what it must not
//! open.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use crate::project::{
    Daemon, POLICY, Project, SECRET, all, can_mount, first_line, kill, text, tollgate, until,
};

/// Native before everything that could reach into it.
fn native(paths: &str, rest: &str) -> String {
    format!("[[rule]]\nname = 'out'\npath = {paths}\naction = 'native'\n{rest}\n{POLICY}")
}

/// A project with `target`, which is native, and with `a/out`, which is, too.
fn project() -> Project {
    let project = Project::new();
    fs::write(project.path("policy.toml"), native("['target', 'a/out']", "")).unwrap();
    for directory in ["dir/target/deep", "dir/a/out", "dir/plain"] {
        fs::create_dir_all(project.path(directory)).unwrap();
    }
    fs::write(project.path("dir/target/file"), "built\n").unwrap();
    project
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// The server's report on the view at `at`.
fn report(at: &Path) -> serde_json::Value {
    let output = tollgate().args(["status", "--json"]).arg(at).output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()[0].clone()
}

fn requests(at: &Path) -> serde_json::Value {
    report(at)["transport"]["by_operation"].clone()
}

/// A CMD that goes on when it is told to.
fn start(project: &Project, script: &str) -> Child {
    let mut command = project.run();
    command.args(["sh", "-ec", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn go_on(child: &mut Child) {
    io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
}

#[test]
fn work_in_a_native_directory_takes_not_one_request() {
    if !can_mount() {
        return;
    }
    let project = project();
    let dir = fs::canonicalize(project.path("dir")).unwrap();
    let script = "
        cd target; echo ready; read line
        for i in $(seq 50); do mkdir d$i; echo $i >d$i/f; cat d$i/f >>all; mv d$i/f d$i/g; done
        ls -lR . >list; find . -name g -delete; rmdir d*; ln all linked; chmod 600 all; rm linked
        echo done; read line";
    let mut child = start(&project, script);
    assert_eq!(first_line(&mut child), "ready");
    let before = requests(&dir);
    go_on(&mut child);
    assert_eq!(first_line(&mut child), "done");
    assert_eq!(requests(&dir), before);
    assert_eq!(report(&dir)["native"], serde_json::json!(["target", "a/out"]));
    go_on(&mut child);
    assert!(child.wait().unwrap().success());
    let all = fs::read_to_string(project.path("dir/target/all")).unwrap();
    assert_eq!(all.lines().count(), 50, "it is the lower directory");
}

#[test]
fn nothing_crosses_the_border_but_by_copy() {
    if !can_mount() {
        return;
    }
    let project = project();
    let _daemon = Daemon::start(&project);
    let at = |name: &str| project.path("mnt").join(name);
    for (from, to) in [("target/file", "moved"), ("a.txt", "target/moved"), ("docs", "target/docs")]
    {
        assert_eq!(errno(fs::rename(at(from), at(to))), libc::EXDEV, "{from} to {to}");
    }
    for (from, to) in
        [("target/file", "link"), ("a.txt", "target/link"), ("target/file", "a/out/l")]
    {
        assert_eq!(errno(fs::hard_link(at(from), at(to))), libc::EXDEV, "{from} to {to}");
    }
    // What the rules keep closed cannot be moved in either way.
    assert!(fs::rename(at("keys/id_rsa"), at("target/id_rsa")).is_err());
    assert!(fs::copy(at("keys/id_rsa"), at("target/id_rsa")).is_err());
    assert_ne!(fs::metadata(at("target")).unwrap().dev(), fs::metadata(at("a")).unwrap().dev());
}

#[test]
fn the_directory_stays_and_its_content_can_go() {
    if !can_mount() {
        return;
    }
    let project = project();
    let _daemon = Daemon::start(&project);
    let at = |name: &str| project.path("mnt").join(name);
    assert_eq!(errno(fs::rename(at("target"), at("moved"))), libc::EBUSY);
    assert_eq!(errno(fs::rename(at("docs"), at("target"))), libc::EBUSY);
    // A directory above would take the mount along.
    assert_eq!(errno(fs::rename(at("a"), at("b"))), libc::EBUSY);
    assert_eq!(exchange(&at("a"), &at("plain")), Err(rustix::io::Errno::BUSY));
    assert_eq!(exchange(&at("plain"), &at("a")), Err(rustix::io::Errno::BUSY));
    // As `cargo clean` does: everything goes but the directory.
    assert_eq!(errno(fs::remove_dir_all(at("target"))), libc::EBUSY);
    assert_eq!(fs::read_dir(project.path("dir/target")).unwrap().count(), 0);
    fs::write(at("target/again"), "x").unwrap();
    assert!(project.path("dir/target/again").exists());
    // Where the mount does not show, the server refuses it itself.
    assert_eq!(refused_without_the_mount(&project), "rmdir rename exchange ");
}

fn exchange(one: &Path, other: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// Which changes of `a/out` fail with EBUSY in a mount namespace where nothing is mounted on it.
fn refused_without_the_mount(project: &Project) -> String {
    let script = "
        mount --make-rprivate /; umount mnt/a/out; cd mnt; export LC_ALL=C
        rmdir a/out 2>&1 | grep -q 'busy' && printf 'rmdir '
        mv -T a/out a/other 2>&1 | grep -q 'busy' && printf 'rename '
        mv --exchange a plain 2>&1 | grep -q 'busy\\|unrecognized' && printf 'exchange '";
    text(&project.in_mount_namespace(script).stdout)
}

#[test]
fn a_missing_directory_is_served_by_the_view_or_made() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = |rest| fs::write(project.path("policy.toml"), native("'new/out'", rest)).unwrap();
    policy("");
    let output = project.sh("mkdir -p new/out; echo x >new/out/file; rm -r new; echo fine");
    assert_eq!(text(&output.stdout), "fine\n", "{}", all(&output));
    let hint = "native directory `new/out` does not exist";
    assert!(text(&output.stderr).contains(hint), "{}", all(&output));
    policy("create = true");
    let output =
        project.sh("grep -c \" $PWD/new/out \" /proc/self/mountinfo; echo x >new/out/file");
    assert_eq!(text(&output.stdout), "1\n", "{}", all(&output));
    assert!(project.path("dir/new/out/file").exists());
}

#[test]
fn a_directory_that_cannot_be_made_as_all_is_read_only_is_left_out() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = native("['new/out', 'docs', 'docs/out']", "create = true");
    fs::write(project.path("policy.toml"), policy).unwrap();
    let missing = ["new/out", "docs/out"].map(|path| format!("native directory `{path}`"));
    let reason = "does not exist, and cannot be made: the file system is read-only";
    let mount = "
        $T mount --daemon --read-only --policy policy.toml dir mnt
        cat mnt/a.txt; $T status --json mnt; $T umount mnt";
    let run = "
        mount --make-rprivate /; mount --bind dir dir; mount -o remount,bind,ro dir; cd dir
        $T run --policy ../policy.toml . -- cat a.txt";
    for script in [mount, run] {
        let output = project.in_mount_namespace(script);
        assert!(output.status.success(), "{}", all(&output));
        for missing in &missing {
            let note = format!("{missing} {reason}");
            assert_eq!(text(&output.stderr).matches(&note).count(), 1, "{}", all(&output));
        }
        assert!(!text(&output.stderr).contains("`docs` does not exist"), "{}", all(&output));
        let mut lines = output.stdout.splitn(2, |byte| *byte == b'\n');
        assert_eq!(lines.next(), Some(fs::read(project.path("dir/a.txt")).unwrap().trim_ascii()));
        if script == mount {
            let report: serde_json::Value = serde_json::from_slice(lines.next().unwrap()).unwrap();
            assert_eq!(report[0]["native"], serde_json::json!(["docs"]));
            let said = report[0]["view"]["unavailable"].to_string();
            assert!(missing.iter().all(|one| said.contains(one)), "{said}");
        }
    }
    assert!(!project.path("dir/new").exists() && !project.path("dir/docs/out").exists());
}

#[test]
fn symbolic_links_and_files_are_refused() {
    if !can_mount() {
        return;
    }
    let project = project();
    std::os::unix::fs::symlink("target", project.path("dir/link")).unwrap();
    for (path, reason) in [
        ("link", "is a symbolic link"),
        ("link/deep", "is a symbolic link"),
        ("a.txt", "is not a directory"),
    ] {
        let policy = native(&format!("'{path}'"), "create = true");
        fs::write(project.path("policy.toml"), policy).unwrap();
        let output = project.sh("echo started");
        assert_eq!(output.status.code(), Some(125), "{}", all(&output));
        assert!(all(&output).contains(reason), "{}", all(&output));
    }
}

#[test]
fn a_further_name_of_a_protected_file_is_named_and_not_native() {
    if !can_mount() {
        return;
    }
    let project = project();
    fs::hard_link(project.path("dir/keys/id_rsa"), project.path("dir/target/deep/key")).unwrap();
    let output = project
        .sh("cat keys/id_rsa target/deep/key; grep -c \" $PWD/target \" /proc/self/mountinfo; \
         grep -c \" $PWD/a/out \" /proc/self/mountinfo; cat target/file");
    let expected = "`target` is not native but served by tollgate: `target/deep/key` is a further \
                    name of `keys/id_rsa`";
    assert!(text(&output.stderr).contains(expected), "{}", all(&output));
    assert_eq!(text(&output.stdout), "0\n1\nbuilt\n", "{}", all(&output));
    let daemon = Daemon::start(&project);
    let report = daemon.status();
    assert_eq!(report["native"], serde_json::json!(["a/out"]), "{report}");
    let missing = report["view"]["unavailable"].to_string();
    assert!(missing.contains("native directory `target`"), "{missing}");
    // Nobody has looked the other name up.
    assert!(fs::read(project.path("mnt/target/deep/key")).is_err());
    until("the view is unmounted", || daemon.umount().status.success());
}

/// In the second one, nobody would be asked.
#[test]
fn a_protected_file_with_names_in_two_native_directories_is_kept_in_both() {
    if !can_mount() {
        return;
    }
    let project = project();
    for name in ["dir/target/deep/key", "dir/a/out/key"] {
        fs::hard_link(project.path("dir/keys/id_rsa"), project.path(name)).unwrap();
    }
    let output = project.sh("cat target/deep/key a/out/key; echo >>a/out/key; cat target/file");
    assert_eq!(text(&output.stdout), "built\n", "{}", all(&output));
    assert_eq!(fs::read_to_string(project.path("dir/keys/id_rsa")).unwrap(), SECRET);
    for (directory, name) in [("target", "target/deep/key"), ("a/out", "a/out/key")] {
        let expected = format!(
            "`{directory}` is not native but served by tollgate: `{name}` is a further name of \
             `keys/id_rsa`"
        );
        assert!(text(&output.stderr).contains(&expected), "{}", all(&output));
    }
}

/// CMD could make it such in one `run`, and what it is again in the next one.
#[test]
fn a_native_directory_that_cannot_be_searched_is_left_out() {
    if !can_mount() {
        return;
    }
    let project = project();
    fs::create_dir(project.path("dir/target/d")).unwrap();
    fs::hard_link(project.path("dir/keys/id_rsa"), project.path("dir/target/d/x")).unwrap();
    let output = as_user(
        &project,
        "chmod 0 dir/target/d",
        "chmod 700 target/d; cat target/d/x; cat target/file; $T status --json . >report",
    );
    let Some(output) = output else { return };
    assert_eq!(text(&output.stdout), "built\n", "{}", all(&output));
    let reason = "`target` is not native but served by tollgate: `target/d` cannot be searched";
    assert!(text(&output.stderr).contains(reason), "{}", all(&output));
    let report = fs::read_to_string(project.path("dir/report")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report[0]["native"], serde_json::json!(["a/out"]), "{report}");
    let left_out = report[0]["view"]["unavailable"].to_string();
    assert!(left_out.contains(reason), "{left_out}");
}

/// A name of the file could be in there. Files of which all names are known are not in question.
#[test]
fn a_file_whose_other_name_may_be_where_nobody_could_search_is_not_in_a_native_directory() {
    if !can_mount() {
        return;
    }
    let project = project();
    let reason = "`target` is not native but served by tollgate: `target/x` has a further name";
    let closed = "chmod 0 dir/keys";
    let script = "chmod 700 keys; cat target/x; cat target/file";
    fs::hard_link(project.path("dir/keys/id_rsa"), project.path("dir/target/x")).unwrap();
    fs::write(project.path("dir/plain/f"), "").unwrap();
    fs::hard_link(project.path("dir/plain/f"), project.path("dir/a/out/y")).unwrap();
    let Some(output) = as_user(&project, closed, script) else { return };
    assert_eq!(text(&output.stdout), "built\n", "{}", all(&output));
    assert!(text(&output.stderr).contains(reason), "{}", all(&output));
    assert!(!text(&output.stderr).contains("`a/out` is not native"), "{}", all(&output));
    fs::remove_file(project.path("dir/target/x")).unwrap();
    let output = as_user(&project, closed, script).unwrap();
    assert!(!text(&output.stderr).contains("is not native"), "{}", all(&output));
}

/// A container's build leaves such directories. CMD does not get into them either.
#[test]
fn a_directory_of_another_user_that_nobody_gets_into_leaves_it_native() {
    if !can_mount() {
        return;
    }
    let project = project();
    // Package managers link from a store elsewhere.
    fs::write(project.path("store"), "stored\n").unwrap();
    fs::hard_link(project.path("store"), project.path("dir/target/x")).unwrap();
    let others = "mkdir dir/target/d dir/data; chmod 700 dir/target/d dir/data";
    let script = "grep -c \" $PWD/target \" /proc/self/mountinfo; cat target/x target/d/x";
    let Some(output) = as_user(&project, others, script) else { return };
    assert_eq!(text(&output.stdout), "1\nstored\n", "{}", all(&output));
    // Names that CMD knows can be used.
    let output = as_user(&project, "chown 0 dir/target/d; chmod 711 dir/target/d", script).unwrap();
    assert!(text(&output.stdout).starts_with("0\n"), "{}", all(&output));
}

/// Has a user run `script` in a view, after `before` was done as root; `None` where users cannot.
fn as_user(project: &Project, before: &str, script: &str) -> Option<Output> {
    fs::write(project.path("script"), script).unwrap();
    let as_user = format!(
        "cp $T tollgate; chmod 755 . tollgate; chown -R 4321:4321 dir; {before}
        [ -e fuse ] || mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        export T=$PWD/tollgate; script=$(cat script); cd dir
        exec setpriv --reuid 4321 --regid 4321 --clear-groups \
            $T run --policy ../policy.toml . -- sh -c \"$script\""
    );
    let output = project.in_mount_namespace(&as_user);
    let skipped = all(&output).contains("user namespaces are not allowed");
    (!skipped).then_some(output)
}

/// What is only recorded hides nothing.
#[test]
fn a_native_directory_in_one_that_would_be_hidden_is_native() {
    if !can_mount() {
        return;
    }
    let project = project();
    let hides = "\n[[rule]]\npath = 'a'\naction = 'hide'\nmode = 'audit'\n";
    fs::write(project.path("policy.toml"), native("['a/out']", "") + hides).unwrap();
    let output = project.sh("grep -c \" $PWD/a/out \" /proc/self/mountinfo");
    assert_eq!(text(&output.stdout), "1\n", "{}", all(&output));
    assert!(!text(&output.stderr).contains("the policy hides"), "{}", all(&output));
}

/// What `check` accepts starts.
#[test]
fn a_native_directory_in_a_hidden_one_is_left_out() {
    if !can_mount() {
        return;
    }
    let project = project();
    let policy = native("['a/out']", "create = true") + "\n[[rule]]\npath = 'a'\naction = 'hide'\n";
    fs::write(project.path("policy.toml"), policy).unwrap();
    let output = project.sh("ls a; echo started");
    assert_eq!(text(&output.stdout), "started\n", "{}", all(&output));
    assert!(text(&output.stderr).contains("the policy hides `a`"), "{}", all(&output));
}

#[test]
fn status_names_other_views_and_native_directories_that_are_gone() {
    if !can_mount() {
        return;
    }
    let project = project();
    let daemon = Daemon::start(&project);
    assert_eq!(daemon.status()["native"], serde_json::json!(["target", "a/out"]));
    fs::rename(project.path("dir/target"), project.path("dir/old")).unwrap();
    fs::create_dir(project.path("dir/target")).unwrap();
    until("the mount is gone", || {
        let _ = fs::metadata(project.path("mnt/target"));
        daemon.status()["native"] == serde_json::json!(["a/out"])
    });
    let missing = daemon.status()["view"]["unavailable"].to_string();
    assert!(missing.contains("native directory `target`"), "{missing}");
    let script = "echo up; read line";
    let mut child = start(&project, script);
    assert_eq!(first_line(&mut child), "up");
    let others = daemon.status()["other_views"].to_string();
    assert!(others.contains("(run, policy"), "{others}");
    go_on(&mut child);
    child.wait().unwrap();
    until("the view is unmounted", || daemon.umount().status.success());
}

/// Every attempt prints what it found; none may find the secret.
#[test]
fn a_root_command_gets_nowhere_else_through_it() {
    if !can_mount() {
        return;
    }
    let project = project();
    let dir = fs::canonicalize(project.path("dir")).unwrap();
    let attempts = [
        "umount $D/target; umount -l $D/target; umount $D; cat $D/.env",
        "cd target; cat ../.env ../keys/id_rsa; cat $PWD/../.env",
        "cd target/deep; mv $D/target/deep $H/out; cat ../.env ../../.env",
        "mount --bind $D/target $M; cat $M/../.env; cd $M/deep; cat ../../.env; umount $M",
        "mount --move $D/target $M; cat $M/../.env $D/.env",
        "mount -o remount,suid,dev $D/target",
        "cd target; unshare -Urm sh -c 'umount -l ..; umount -l .; cat ../.env ../../dir/.env'",
        "ln keys/id_rsa target/key; cp -l .env target/env; cat target/key target/env",
        "mv keys target/keys; cat target/keys/id_rsa",
        "ln -s ../.env target/env; ln -s $D/keys/id_rsa target/key; cat target/env target/key",
        "mkdir target/o target/w; mount -t overlay o -o lowerdir=$D/target:$D $M; cat $M/.env",
        "mount -t overlay o -o lowerdir=$D,upperdir=target/o,workdir=target/w $M; cat $M/.env",
        "chroot target cat /../.env ../.env",
        "mv a b; mv a/out target/out; cat b/out/../../.env",
        "for p in /proc/[0-9]*; do cat $p/root$D/.env $p/cwd/../.env; done",
    ];
    for attempt in attempts {
        fs::create_dir_all(project.path("m")).unwrap();
        let mut command = project.run();
        command.args(["timeout", "10", "sh", "-c", attempt]).stdin(Stdio::null());
        command.env("D", &dir).env("H", dir.parent().unwrap()).env("M", project.path("m"));
        let output = command.output().unwrap();
        assert!(!all(&output).contains(SECRET), "`{attempt}` found it: {}", all(&output));
        let _ = fs::remove_dir(project.path("m"));
        assert!(project.path("dir/.env").exists(), "{attempt}");
        fs::create_dir_all(project.path("dir/target/deep")).unwrap();
    }
}

#[test]
fn set_id_programs_and_devices_in_it_have_no_effect() {
    if !can_mount() {
        return;
    }
    let project = project();
    let script = "
        mknod -m 666 dir/target/zero c 1 5; cp $(command -v id) dir/target/id
        chmod 4755 dir/target/id; chmod 755 . dir dir/target
        head -c1 dir/target/zero | wc -c
        set +e
        $T run --chdir . --policy policy.toml dir -- sh -c '
            head -c1 dir/target/zero
            grep \" $PWD/dir/target \" /proc/self/mountinfo | grep -o \"nosuid,nodev\"
            setpriv --reuid 4321 --regid 4321 --clear-groups dir/target/id -u'";
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "1\nnosuid,nodev\n4321\n", "{}", all(&output));
}

#[test]
fn other_paths_to_the_tree_show_it_too_and_nothing_more() {
    if !can_mount() {
        return;
    }
    let project = project();
    let script = "
        mkdir whole below; mount --bind . whole; mount --bind dir/target below
        mount -t tmpfs sub dir/target/deep; echo sub >dir/target/deep/file
        $T run --chdir . --policy policy.toml dir -- sh -c '
            cat whole/dir/target/file below/file dir/target/deep/file
            echo new >below/new; cat dir/target/new; cat whole/dir/.env below/../.env'";
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "built\nbuilt\nsub\nnew\n", "{}", all(&output));
}

#[test]
fn an_unprivileged_run_has_native_directories_and_a_nested_one_rules_over_them() {
    if !can_mount() {
        return;
    }
    let project = project();
    fs::write(project.path("inner.toml"), "[[rule]]\npath='target/file'\naction='deny'\n").unwrap();
    let script = "
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        exec setpriv --reuid 4321 --regid 4321 --clear-groups \
            ./tollgate run --chdir . --policy policy.toml dir -- sh -c '
                grep -c \" $PWD/dir/target \" /proc/self/mountinfo; cat dir/target/file
                umount dir/target; cat dir/.env
                ./tollgate run --chdir . --policy inner.toml dir -- cat dir/target/file dir/docs/guide.md'";
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(text(&output.stdout), "1\nbuilt\nguide\n", "{all}");
    assert!(all.contains("target/file: Permission denied"), "{all}");
}

#[test]
fn a_killed_run_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    let project = project();
    let mut child = start(&project, "echo up; read line");
    assert_eq!(first_line(&mut child), "up");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(mounts_below(&project), [""; 0]);
    assert_eq!(fs::read_to_string(project.path("dir/target/file")).unwrap(), "built\n");
}

/// Where something is mounted below the project.
fn mounts_below(project: &Project) -> Vec<String> {
    let home = fs::canonicalize(project.path("")).unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().map(|line| line.split(' ').nth(4).unwrap().to_owned());
    points.filter(|point| Path::new(point).starts_with(&home)).collect()
}

#[test]
fn umount_takes_native_directories_along_or_leaves_all_as_it_was() {
    if !can_mount() {
        return;
    }
    let project = project();
    let daemon = Daemon::start(&project);
    let all_mounts = mounts_below(&project);
    assert_eq!(all_mounts.len(), 3, "{all_mounts:?}");
    let at = |name: &str| project.path("mnt").join(name);
    // In use in the last native directory, in the first one, and in the view itself.
    for name in ["a/out/open", "target/file", "a.txt"] {
        let open = fs::File::options().append(true).create(true).open(at(name)).unwrap();
        assert!(all(&daemon.umount()).contains("is in use"), "{name}");
        let mut now = mounts_below(&project);
        now.sort();
        let mut expected = all_mounts.clone();
        expected.sort();
        assert_eq!(now, expected, "{name}");
        drop(open);
        assert!(at("target/file").exists());
    }
    until("the view is unmounted", || daemon.umount().status.success());
    assert_eq!(mounts_below(&project), [""; 0]);
}

/// Where names may be hidden, a directory that is moved in the view has names dropped from the cache.
#[test]
fn native_directories_stay_where_others_are_moved() {
    if !can_mount() {
        return;
    }
    let project = project();
    let daemon = Daemon::start(&project);
    let mounted = mounts_below(&project);
    assert_eq!(mounted.len(), 3, "{mounted:?}");
    let at = |name: &str| project.path("mnt").join(name);
    for (from, to) in [("plain", "b"), ("b", "plain")] {
        fs::rename(at(from), at(to)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(mounts_below(&project), mounted, "{from} is {to} now");
    }
    fs::rename(project.path("dir/plain"), project.path("dir/b")).unwrap();
    until("a change outside is seen", || at("b").exists() && !at("plain").exists());
    assert_eq!(mounts_below(&project), mounted);
    drop(daemon);
}

#[test]
fn what_a_killed_server_left_is_cleaned_up() {
    if !can_mount() {
        return;
    }
    let project = project();
    let first = Daemon::start(&project);
    kill(&first.status());
    until("the server is dead", || fs::read_dir(project.path("mnt")).is_err());
    let daemon = {
        let _left = std::mem::ManuallyDrop::new(first);
        Daemon::start(&project)
    };
    assert_eq!(mounts_below(&project).len(), 3);
    kill(&daemon.status());
    until("the server is dead", || fs::read_dir(project.path("mnt")).is_err());
    assert!(daemon.umount().status.success());
    assert_eq!(mounts_below(&project), [""; 0]);
    assert_eq!(fs::read_to_string(project.path("dir/target/file")).unwrap(), "built\n");
}

#[test]
fn a_signal_unmounts_native_directories_too() {
    if !can_mount() {
        return;
    }
    let project = project();
    let mut server = tollgate()
        .args(["mount", "--policy"])
        .arg(project.path("policy.toml"))
        .args([project.path("dir"), project.path("mnt")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("everything is mounted", || mounts_below(&project).len() == 3);
    // The line "ready" comes a moment later; the signal is blocked until then.
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert_eq!(mounts_below(&project), [""; 0]);
}

#[test]
fn a_directory_that_is_exchanged_outside_shows_as_it_is_then() {
    if !can_mount() {
        return;
    }
    let project = project();
    let daemon = Daemon::start(&project);
    fs::rename(project.path("dir/target"), project.path("dir/old")).unwrap();
    fs::create_dir(project.path("dir/target")).unwrap();
    fs::write(project.path("dir/target/new"), "new\n").unwrap();
    let new = project.path("mnt/target/new");
    until("the new directory shows", || new.exists());
    assert_eq!(fs::read_to_string(new).unwrap(), "new\n");
    until("the view is unmounted", || daemon.umount().status.success());
    assert_eq!(mounts_below(&project), [""; 0]);
}

#[test]
fn an_unprivileged_mount_serves_it_and_says_so() {
    if !can_mount() {
        return;
    }
    let project = project();
    let script = "
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir mnt
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        command -v fusermount3 >/dev/null || { echo no fusermount3; exit 0; }
        # It mounts for users that have a name alone.
        { cat /etc/passwd; echo nobody-yet:x:4321:4321::/:/bin/sh; } >passwd
        mount --bind passwd /etc/passwd
        setpriv --reuid 4321 --regid 4321 --clear-groups \
            ./tollgate mount --daemon --log log.txt --policy policy.toml dir mnt || cat log.txt
        setpriv --reuid 4321 --regid 4321 --clear-groups cat mnt/target/file
        setpriv --reuid 4321 --regid 4321 --clear-groups ./tollgate status mnt
        setpriv --reuid 4321 --regid 4321 --clear-groups ./tollgate umount mnt";
    fs::write(project.path("log.txt"), "").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(project.path("log.txt"), open).unwrap();
    let output: Output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("no fusermount3") {
        eprintln!("skipped: {all}");
        return;
    }
    assert!(all.contains("built\n"), "{all}");
    assert!(all.contains("without    native: mounting needs CAP_SYS_ADMIN"), "{all}");
}

/// The rules of the test that everything above relies on.
#[test]
fn the_order_of_rules_is_checked() {
    let project = Project::new();
    let file: PathBuf = project.path("late.toml");
    fs::write(&file, format!("{POLICY}\n[[rule]]\npath = 'target'\naction = 'native'\n")).unwrap();
    let output = tollgate().arg("check").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(all(&output).contains("comes first and reaches into `target`"), "{}", all(&output));
}

/// A bind mount in it would show files of DIR without their rules.
#[test]
fn a_mount_in_it_shows_no_file_that_rules_protect() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = "[[rule]]\npath = \"nat\"\naction = \"native\"\n\
                  [[rule]]\npath = \"keys/**\"\naction = \"deny\"\n";
    fs::write(project.path("p.toml"), policy).unwrap();
    let output = project.in_mount_namespace(
        "mkdir -p dir/nat/x; touch dir/nat/f; mount --bind dir/keys dir/nat/x
        mount --bind dir/keys/id_rsa dir/nat/f
        $T run --policy p.toml dir -- sh -c 'cat nat/x/id_rsa nat/f; echo started'
        $T mount --daemon --policy p.toml dir mnt
        cat mnt/nat/x/id_rsa mnt/nat/f || true; $T umount mnt
        umount dir/nat/x; umount dir/nat/f
        $T run --policy p.toml dir -- sh -c 'grep -c dir/nat /proc/self/mountinfo'",
    );
    let said = all(&output);
    assert!(!said.contains(SECRET), "{said}");
    assert!(said.contains("`nat` is not native but served"), "{said}");
    assert_eq!(text(&output.stdout), "started\n1\n", "{said}");
}
