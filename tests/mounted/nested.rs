//! `tollgate run` inside `tollgate run` over the same directory: both policies hold.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::elsewhere::{another_namespace, the_only_namespace};
use crate::harness::{View, can_mount};

const OUTER: &str = "[[rule]]\nname = 'env'\npath = '**/.env'\naction = 'hide'\n";
const INNER: &str = "[[rule]]\nname = 'keys'\npath = '**/id_*'\naction = 'deny'\n";
const SECRET: &str = "the-secret-of-this-test";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `script` in a view of a view of one directory.
fn inside_both(script: &str) -> (Output, tempfile::TempDir) {
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    for (name, content) in [
        ("dir/.env", SECRET),
        ("dir/id_rsa", SECRET),
        ("dir/a.txt", "plain\n"),
        ("outer.toml", OUTER),
        ("inner.toml", INNER),
    ] {
        fs::write(at(name), content).unwrap();
    }
    let program = env!("CARGO_BIN_EXE_tollgate");
    let mut command = Command::new(program);
    command.arg("run").arg("--policy").arg(at("outer.toml")).arg(at("dir")).args(["--", program]);
    command.arg("run").arg("--policy").arg(at("inner.toml")).arg(at("dir"));
    command.args(["--", "sh", "-c", script]).current_dir(at("dir")).stdin(Stdio::null());
    (command.output().unwrap(), base)
}

#[test]
fn a_view_over_a_view_obeys_both_policies() {
    if !can_mount() {
        return;
    }
    let script =
        "ls -A; cat a.txt; cat .env; cat id_rsa; echo new >made; echo more >>a.txt; exit 9";
    let (output, base) = inside_both(script);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(stdout, "a.txt\nid_rsa\nplain\n", "{stderr}");
    assert_eq!(output.status.code(), Some(9), "{stderr}");
    assert!(stderr.contains(".env: No such file"), "{stderr}");
    assert!(stderr.contains("id_rsa: Permission denied"), "{stderr}");
    let below = |name: &str| fs::read_to_string(base.path().join("dir").join(name)).unwrap();
    assert_eq!((below("made"), below("a.txt")), ("new\n".into(), "plain\nmore\n".into()));
}

/// The kernel opens the file of the view beneath for the one above, and says EIO for whatever that answers.
#[test]
fn what_the_view_beneath_denies_is_denied_with_its_error() {
    if !can_mount() {
        return;
    }
    let beneath = View::new("[[rule]]\npath = 'secret'\naction = 'deny'\n");
    fs::write(beneath.below("secret"), SECRET).unwrap();
    fs::write(beneath.below("plain"), "plain").unwrap();
    let view = View::of(beneath.root(), "", &[]);
    for _ in 0..2 {
        let errors = [
            fs::read(view.at("secret")).unwrap_err(),
            fs::File::options().append(true).open(view.at("secret")).unwrap_err(),
            fs::File::create(view.at("secret")).unwrap_err(),
        ];
        assert_eq!(errors.map(|error| error.raw_os_error()), [Some(libc::EACCES); 3]);
    }
    assert_eq!(fs::read(view.at("plain")).unwrap(), b"plain");
    fs::write(view.at("plain"), "changed").unwrap();
    assert_eq!(fs::read(beneath.below("plain")).unwrap(), b"changed");
    assert_eq!(fs::read_to_string(beneath.below("secret")).unwrap(), SECRET);
}

/// Without the inner view, and to the processes between the two, the outer one shows the key.
#[test]
fn there_is_no_way_past_the_inner_view() {
    if !can_mount() {
        return;
    }
    let script = "umount $PWD; umount -l $PWD; cat $PWD/id_rsa; \
                  unshare -Urm sh -c 'umount -l $PWD; cat $PWD/id_rsa'; cat $PWD/.env; \
                  for p in /proc/[0-9]*; do cat $p/root$PWD/id_rsa $p/cwd/id_rsa; done; cat a.txt";
    let (output, _base) = inside_both(script);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(text(&output.stdout), "plain\n", "{said}");
}

#[test]
fn a_second_signal_ends_a_view_that_another_mount_namespace_still_shows() {
    if !can_mount() {
        return;
    }
    let _only = the_only_namespace();
    let view = View::new("");
    let mut other = another_namespace();
    // Dropping a view sends the first signal, waits, and sends the second one.
    drop(view);
    assert!(other.try_wait().unwrap().is_none(), "the other namespace ended first");
    drop(other.stdin.take());
    assert!(other.wait().is_ok());
}

/// The server of the view above is somebody else, and is not asked about in place of its callers.
#[test]
fn rules_about_users_hold_through_a_view_above() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: needs root");
    }
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("dir");
    fs::create_dir_all(dir.join("d")).unwrap();
    let everybody = |path: &std::path::Path, mode| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    [base.path(), &dir, &dir.join("d")].iter().for_each(|path| everybody(path, 0o777));
    for name in ["f", "only read", "other", "server"] {
        fs::write(dir.join(name), "five\n").unwrap();
        everybody(&dir.join(name), 0o666);
    }
    let below = "[[rule]]\npath = 'f'\nuid = [1234]\naction = 'deny'\n\
                 [[rule]]\npath = 'only read'\ngid = [1234]\naction = 'read-only'\n\
                 [[rule]]\npath = 'd'\nuid = [1234]\noperation = 'list'\naction = 'deny'\n\
                 [[rule]]\npath = 'server'\nuid = [0]\naction = 'read-only'\n";
    for above in ["userspace", "passthrough"] {
        let first = View::of(&dir, below, &[]);
        let second = View::of(first.root(), &format!("default = '{above}'\n"), &[]);
        let as_user = |uid: u32, script: &str| {
            use std::os::unix::process::CommandExt;
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(second.root()).uid(uid).gid(uid);
            let output = command.output().unwrap();
            text(&output.stdout) + &text(&output.stderr)
        };
        for script in ["cat f", "echo by >>f", ": >f", "ls d"] {
            let said = as_user(1234, script);
            assert!(
                said.contains("Permission denied") && !said.contains("five"),
                "{script}: {said}"
            );
            let said = as_user(1235, &script.replace(": >f", "true"));
            assert!(!said.contains("denied"), "{script}: {said}");
        }
        assert!(as_user(1234, "echo by >>'only read'").contains("Read-only file system"));
        assert_eq!(as_user(1234, "cat 'only read' other; echo x >>other"), "five\nfive\n");
        // The server above may not write this one, so nobody empties it there.
        for script in ["echo x >server", "echo x >>server"] {
            assert!(as_user(1234, script).contains("Read-only file system"), "{script}");
            assert_eq!(fs::read_to_string(dir.join("server")).unwrap(), "five\n", "{script}");
        }
        assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "five\nby\n");
        fs::write(dir.join("f"), "five\n").unwrap();
        fs::write(dir.join("other"), "five\n").unwrap();
        drop((second, first));
    }
}
