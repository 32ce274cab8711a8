//! What `--allow` opens, and what it does not; a `run` in a `run` in a `run`; what is said of
//! variables.

use std::process::Stdio;

use crate::project::{Project, all, can_mount, text, tollgate};

#[test]
fn what_is_allowed_to_be_changed_holds_around_dir_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // The directory above DIR would be shown read-only, as it lies in /tmp.
    let place = project.path("");
    // A policy in it would be CMD's to rewrite.
    let elsewhere = tempfile::tempdir().unwrap();
    let policy = elsewhere.path().join("policy.toml");
    std::fs::copy(project.path("policy.toml"), &policy).unwrap();
    let mut command = tollgate();
    command.args(["run", "--sandbox", "strict", "--allow", &format!("{}:rw", place.display())]);
    let output = command
        .arg("--policy")
        .arg(policy)
        .arg(project.path("dir"))
        .args(["--", "sh", "-c", "echo new >../beside; cat .env"])
        .current_dir(project.path("dir"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(std::fs::read_to_string(project.path("beside")).unwrap(), "new\n");
    assert!(all(&output).contains(".env: No such file"), "{}", all(&output));
}

#[test]
fn device_nodes_in_an_allowed_place_of_shared_memory_do_not_open() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = shared.path().join("zero");
    let device = rustix::fs::makedev(1, 5);
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from(0o666));
    rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, device).unwrap();
    for right in ["", ":rw"] {
        let mut command = tollgate();
        command.args(["run", "--quiet", "--allow", &format!("{}{right}", shared.path().display())]);
        let script = format!("head -c 1 {} | wc -c; head -c 1 /dev/zero | wc -c", node.display());
        command.arg(project.path("dir")).args(["--", "sh", "-c", &script]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(text(&output.stdout), "0\n1\n", "{}", all(&output));
        assert!(text(&output.stderr).contains("Permission denied"), "{}", all(&output));
    }
}

/// As a cgroup that belongs to the user.
#[test]
fn kernel_file_systems_in_an_allowed_place_stay_read_only_for_a_user_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir -p place/steers; mount -t bpf b place/steers || exit 77
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir; chown 4321 place
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        as='setpriv --reuid 4321 --regid 4321 --clear-groups'
        $as mkdir place/steers/outside; [ -d place/steers/outside ] && echo outside
        HOME=/ $as ./tollgate run --quiet --chdir . --policy policy.toml --allow $PWD/place:rw dir -- \
            sh -c 'echo kept >place/file; cat place/file; mkdir place/steers/inside; true'";
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    if output.status.code() == Some(77) || said.contains("user namespaces are not allowed") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(text(&output.stdout), "outside\nkept\n", "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn sockets_of_sessions_stay_hidden() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let session = format!("hidden-{}", std::process::id());
    for rights in ["", ":rw"] {
        let mut command =
            project.run_with(&["--session", &session, "--allow", &format!("/run{rights}")]);
        let output = command
            .args(["sh", "-c", "ls -A /run/tollgate-sessions | wc -l; ls -d /run/tollgate"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(text(&output.stdout), "0\n/run/tollgate\n", "{}", all(&output));
    }
}

#[test]
fn a_run_in_a_run_in_a_run_works() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let own = env!("CARGO_BIN_EXE_tollgate");
    let inner = [own, "run", "--quiet", "--policy", "none", ".", "--"];
    let mut command = project.run();
    command.args(inner).args(inner).args(inner);
    let output =
        command.args(["sh", "-c", "cat a.txt .env"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
    assert!(all(&output).contains(".env: No such file"), "{}", all(&output));
}

#[test]
fn variables_with_secrets_in_their_values_are_left_out_and_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut command = project.run_with(&["--env", "NOT_SET_HERE"]);
    command
        .args(["sh", "-c", "env"])
        .env("ACCOUNT", r#"{"type": "service", "private_key": "planted"}"#)
        .env("REMOTE", " https://ghp_0123456789abcdefplanted@github.com/a/b")
        .env("STORE", "Server=db;Password=planted;")
        .env("HEADER", "AUTHORIZATION: basic cGxhbnRlZA==")
        .env("SETTINGS", r#"{"colour": "green"}"#);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("SETTINGS=") && !out.contains("planted"), "{out}");
    assert!(!out.contains("HEADER="), "{out}");
    assert!(said.contains("look like secrets: ACCOUNT, HEADER, REMOTE, STORE"), "{said}");
    let unset = "warning: --env: not set here, so CMD does not get it: NOT_SET_HERE";
    assert!(said.contains(unset), "{said}");
    let quiet =
        project.run_with(&["--quiet", "--env", "NOT_SET_HERE"]).arg("true").output().unwrap();
    let said = text(&quiet.stderr);
    assert!(said.contains(unset) && said.lines().count() == 1, "{said}");
}

/// A bind mount gives a place a second path, by which CMD could change the log of what it does.
#[test]
fn a_log_that_the_command_reaches_by_another_mount_is_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir pb deeper al bm whole other disk dir/disk; touch file dir/file
        mount --bind dir pb; mount --bind dir/logs deeper; mount --bind al bm; mount --bind . whole
        mount -t tmpfs t dir/disk; mkdir dir/disk/in; mount --bind dir/disk/in disk
        mount --bind dir/file file
        run() { $T run --quiet --chdir . --policy policy.toml \"$@\" dir -- true && echo ran $*; }
        for log in pb/a pb/logs/a deeper/a whole/dir/a disk/a file; do
            run --audit $log || true
            $T mount --policy policy.toml --daemon --audit $log dir mnt && $T umount mnt && echo mounted
        done
        for allow in al bm whole whole/al; do run --audit al/a --allow $PWD/$allow:rw || true; done
        run --audit bm/a --allow $PWD/al:rw || true
        run --audit al/a --allow $PWD/bm --allow $PWD/other:rw";
    let output = project.in_mount_namespace(script);
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(out.starts_with("ran --audit al/a --allow") && out.lines().count() == 1, "{out}{said}");
    assert_eq!(said.matches("lies inside DIR").count(), 12, "{said}");
    assert_eq!(said.matches("could change the audit log").count(), 5, "{said}");
    assert!(said.contains("/dir/logs/a`)") && said.contains("/dir/disk/in/a`)"), "{said}");
}

/// The same of the policy: in DIR it is read-only by each of its names, elsewhere CMD gets no way to it.
#[test]
fn a_policy_that_the_command_reaches_by_another_mount_is_kept() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir pb al bm; mount --bind dir pb; mount --bind al bm
        cp policy.toml al/policy.toml; cp policy.toml dir/kept.toml
        run() { $T run --quiet --chdir $PWD/dir \"$@\"; }
        run --policy al/policy.toml --allow $PWD/bm:rw dir -- echo ran || true
        run --policy pb/kept.toml dir -- sh -c 'echo x >>kept.toml; rm kept.toml; mv kept.toml x
            echo x >>../pb/kept.toml; cat kept.toml >/dev/null && echo read' || true
        $T mount --daemon --policy pb/kept.toml dir mnt; echo x >>mnt/kept.toml || true
        rm -f mnt/kept.toml || true; $T umount mnt; cmp policy.toml dir/kept.toml && echo as before";
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    assert_eq!(text(&output.stdout), "read\nas before\n", "{said}");
    assert!(said.contains("could rewrite the policy") && said.contains("Read-only"), "{said}");
}

/// A hard link in a place that CMD may write is the policy itself, and nothing there keeps it.
#[test]
fn a_policy_that_the_command_reaches_by_a_further_name_is_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        cp $T tollgate; chmod 755 . tollgate; mkdir al part dir/disk; cp policy.toml p.toml
        run() { ./tollgate run --quiet --chdir . \"$@\" && echo ran || true; }
        ln p.toml dir/link; run --policy p.toml dir -- sh -c 'echo >dir/link'
        ln -s p.toml by-link; run --policy by-link dir -- sh -c 'echo >dir/link'; rm dir/link
        ln p.toml al/link; run --policy p.toml --allow $PWD/al:rw dir -- sh -c 'echo >al/link'
        cp policy.toml dir/in.toml; ln dir/in.toml al/in
        run --policy dir/in.toml --allow $PWD/al:rw dir -- sh -c 'echo >al/in'
        printf '[[view]]\\ndir = \"%s/al\"\\n' $PWD >views; ln views al/views
        mount -t tmpfs t part; cp -r dir part/dir
        run --policy views part/dir -- sh -c 'echo >al/views'
        run --policy p.toml dir -- true | sed 's/^/not /'
        run --policy p.toml part/dir -- true; run --policy dir/in.toml dir -- true
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; chmod 644 p.toml; export HOME=/
        chown -R 4321:4321 dir; user='setpriv --reuid 4321 --regid 4321 --clear-groups'
        $user ./tollgate run --chdir . --policy p.toml dir -- echo ran; chmod 646 p.toml
        $user ./tollgate run --chdir . --policy p.toml dir -- echo ran || true
        cmp policy.toml p.toml && cmp policy.toml dir/in.toml && echo as before";
    let output = project.in_mount_namespace(script);
    let (out, said) = (text(&output.stdout), all(&output));
    assert_eq!(out, "ran\nran\nran\nas before\n", "{said}");
    assert_eq!(said.matches(" has 2 names (hard links)").count(), 7, "{said}");
    assert!(said.contains("p.toml.own && mv "), "{said}");
}
