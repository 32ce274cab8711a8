//! Repositories in DIR that somebody made to be looked into: what the presets say, and what it takes.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{Answer, Place, tollgate};

/// Of somebody who may write in the directory: another day it can be read again, with what is in it.
#[test]
fn a_directory_that_cannot_be_read_is_said() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: root alone can start it as another user");
    }
    let place = Place::new();
    let program = place.0.path().join("tollgate");
    // By another process, as the file must not be open for writing here.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tollgate")).arg(&program).status();
    assert!(copied.unwrap().success());
    std::fs::create_dir_all(place.path("dir/sub/lib/.git")).unwrap();
    place.write("dir/sub/lib/.git/HEAD", "x");
    let set_mode = |path: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.path(path), permissions).unwrap();
    };
    set_mode("", 0o755);
    // What root keeps for itself is no more CMD's than git's.
    for (owner, mode, is_said) in [(65534, 0o700, false), (65534, 0, true), (0, 0o700, false)] {
        chown(place.path("dir/sub"), Some(owner), Some(owner)).unwrap();
        set_mode("dir/sub", mode);
        let mut check = Command::new(&program);
        check.args(["check", "agent", "--dir", "."]).env("LC_ALL", "C");
        check.current_dir(place.path("dir")).uid(65534);
        let answer = Answer(check.output().unwrap());
        assert_eq!(answer.code(), 0, "{answer:?}");
        assert_eq!(answer.err().contains("that cannot be read"), is_said, "{answer:?}");
    }
}

/// A section may have a name of half a mebibyte, and each of its settings is in it.
#[test]
fn settings_in_a_section_with_a_long_name_take_little_memory() {
    let place = Place::new();
    let name = "x".repeat(1 << 19);
    std::fs::create_dir_all(place.path("dir/sub/.git/objects")).unwrap();
    place.write("dir/sub/.git/HEAD", "x");
    let keys = (0..60_000).map(|number| format!("k{number}=x\n")).collect::<String>();
    for section in ["user", "pager"] {
        let config = format!("[{section} \"{name}\"]\n{}", &keys[..500_000]);
        place.write("dir/sub/.git/config", &config);
        for arguments in
            [&["explain", "--policy", "agent", "x"][..], &["check", "--dir", ".", "none"]]
        {
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"]);
            limited.arg(env!("CARGO_BIN_EXE_tollgate")).args(arguments);
            let answer = Answer(limited.current_dir(place.path("dir")).output().unwrap());
            assert_eq!(answer.code(), 0, "{section}: {:?} {}", answer.0.status, answer.err());
        }
    }
}

/// The policy that it writes is not fitted again at a start, which would say so.
#[test]
fn init_says_that_its_policy_does_not_keep_all() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("dir/.git/objects")).unwrap();
    place.write("dir/.git/HEAD", "x");
    for (times, is_said) in [(10, false), (200_000, true)] {
        place.write("dir/.gitmodules", &"# more\n".repeat(times));
        let answer = tollgate(["init", "--output", "-", "--dir", &place.path("dir")]);
        assert_eq!(answer.code(), 0, "{answer:?}");
        assert_eq!(answer.err().contains("to keep all of them"), is_said, "{}", answer.err());
    }
}
