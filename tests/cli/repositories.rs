//! Repositories in DIR that somebody made to be looked into: what the presets say, and what it takes.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use super::{Answer, Place, tollgate};

/// The program where every user may start it.
fn program_in(place: &Place) -> PathBuf {
    let program = place.0.path().join("tollgate");
    // By another process, as the file must not be open for writing here.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tollgate")).arg(&program).status();
    assert!(copied.unwrap().success());
    program
}

/// Gives a file, or a directory, to a user.
fn set(place: &Place, path: &str, owner: u32, mode: u32) {
    let path = place.path(path);
    chown(&path, Some(owner), Some(owner)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Of somebody who may write in the directory: another day it can be read again, with what is in it.
#[test]
fn a_directory_that_cannot_be_read_is_said() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: root alone can start it as another user");
    }
    let place = Place::new();
    let program = program_in(&place);
    std::fs::create_dir_all(place.path("dir/sub/lib/.git/worktrees/w")).unwrap();
    place.write("dir/sub/lib/.git/HEAD", "x");
    place.write("dir/sub/lib/.git/worktrees/w/commondir", "../..");
    let set = |path: &str, owner, mode| set(&place, path, owner, mode);
    let user = 65534;
    set("", 0, 0o755);
    // Files that lead to what is closed: of a linked working tree, of a submodule, of one elsewhere.
    let places = ["dir/sub/lib/.git/worktrees/w", "dir/.git/modules/m", "dir/.cache/g"];
    for (place_of, top) in places.iter().zip(["w", "m", "s"]) {
        std::fs::create_dir_all(place.path(place_of)).unwrap();
        std::fs::create_dir(place.path(&format!("dir/{top}"))).unwrap();
        place.write(&format!("{place_of}/HEAD"), "x");
        let named = place_of.strip_prefix("dir").unwrap();
        place.write(&format!("dir/{top}/.git"), &format!("gitdir: ..{named}\n"));
    }
    place.write("dir/.git/HEAD", "x");
    place.write("dir/sub/lib/.git/worktrees/w/gitdir", "/elsewhere/.git");
    let (above, repository) = ("dir/sub", "dir/sub/lib/.git");
    let work_trees = "dir/sub/lib/.git/worktrees";
    for (path, owner, mode, is_said) in [
        (above, user, 0o700, false),
        (above, user, 0, true),
        // What is in it can be listed, and not be looked at.
        (above, user, 0o600, true),
        (repository, user, 0o600, true),
        (work_trees, user, 0o311, true),
        // What root keeps for itself is no more CMD's than git's.
        (above, 0, 0o700, false),
        (above, 0, 0o744, false),
        (repository, 0, 0o700, false),
        (repository, 0, 0o744, false),
        (work_trees, 0, 0o711, false),
        (work_trees, user, 0o600, true),
        (places[0], user, 0, true),
        (places[1], user, 0, true),
        (places[2], user, 0, true),
        (places[2], 0, 0o700, false),
    ] {
        set(path, owner, mode);
        let mut check = Command::new(&program);
        check.args(["check", "agent", "--dir", "."]).env("LC_ALL", "C");
        check.current_dir(place.path("dir")).uid(user);
        let answer = Answer(check.output().unwrap());
        assert_eq!(answer.code(), 0, "{path} {mode:o}: {answer:?}");
        let says = answer.err().contains("that cannot be read");
        assert_eq!(says, is_said, "{path} {mode:o}: {answer:?}");
        set(path, user, 0o755);
    }
}

/// A program of another user's may be a hook for everybody: no shell reads it.
#[test]
fn a_hook_that_cannot_be_read_is_said_unless_another_user_keeps_it_elsewhere() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: root alone can start it as another user");
    }
    let place = Place::new();
    let program = program_in(&place);
    std::fs::create_dir_all(place.path("dir/.git/objects")).unwrap();
    place.write("dir/.git/HEAD", "x");
    let set = |path: &str, owner, mode| set(&place, path, owner, mode);
    let user = 65534;
    set("", 0, 0o755);
    for (hooks, owner, is_said) in [
        ("hooks", 0, false),
        // CMD of this user can have closed it.
        ("hooks", user, true),
        ("dir/hooks", 0, true),
    ] {
        std::fs::create_dir_all(place.path(hooks)).unwrap();
        let hook = format!("{hooks}/pre-commit");
        place.write(&hook, "./tools/lint\n");
        set(&hook, owner, 0o111);
        let config = format!("[core]\nhooksPath = {}\n", place.path(hooks));
        let mut check = Command::new(&program);
        check.args(["check", "agent", "--dir", "."]).env("LC_ALL", "C");
        check.env("GIT_CONFIG_GLOBAL", place.write("config", &config));
        check.current_dir(place.path("dir")).uid(user);
        let answer = Answer(check.output().unwrap());
        assert_eq!(answer.code(), 0, "{hooks} {owner}: {answer:?}");
        let says = answer.err().contains("that cannot be read");
        assert_eq!(says, is_said, "{hooks} {owner}: {answer:?}");
    }
}

/// Each line of such a file includes another one beside it, by a path that is long without saying so.
#[test]
fn settings_that_include_many_take_little_memory() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("dir/sub/.git/objects")).unwrap();
    place.write("dir/sub/.git/HEAD", "x");
    let mut deep = PathBuf::from(place.path("dir"));
    (0..13).for_each(|_| deep.push("x".repeat(250)));
    std::fs::create_dir_all(&deep).unwrap();
    let lines = "path=a\n".repeat(149_000);
    std::fs::write(deep.join("b0"), format!("[include]\n{lines}")).unwrap();
    let mut config = "[include]\n".to_owned();
    for number in 0..6 {
        let file = deep.join(format!("b{number}"));
        if number > 0 {
            std::fs::hard_link(deep.join("b0"), &file).unwrap();
        }
        config += &format!("path = {}\n", file.display());
    }
    place.write("dir/sub/.git/config", &config);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"]);
    limited.arg(env!("CARGO_BIN_EXE_tollgate")).args(["explain", "--policy", "agent", "x"]);
    let answer = Answer(limited.current_dir(place.path("dir")).output().unwrap());
    assert_eq!(answer.code(), 0, "{:?} {}", answer.0.status, answer.err());
}

/// A setting may be a path of a mebibyte, and so may those of files that are included.
#[test]
fn a_path_of_a_mebibyte_takes_little_time() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("dir/sub/.git/objects")).unwrap();
    place.write("dir/sub/.git/HEAD", "x");
    let setting = format!("[core]\nhooksPath = {}", "a/".repeat(520_000));
    let included = (0..20).map(|number| format!("path = i{number}\n")).collect::<String>();
    place.write("dir/sub/.git/config", &format!("[include]\n{included}{setting}x\n"));
    for number in 0..20 {
        place.write(&format!("dir/sub/.git/i{number}"), &format!("{setting}y{number}\n"));
    }
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -t 10; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tollgate")]);
    limited.args(["explain", "--policy", "agent", "x"]);
    let answer = Answer(limited.current_dir(place.path("dir")).output().unwrap());
    assert_eq!(answer.code(), 0, "{:?} {}", answer.0.status, answer.err());
}

/// Each of the names in a directory is shorter by far than its path.
#[test]
fn many_names_behind_a_long_path_take_little_memory() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("dir/sub/.git/objects")).unwrap();
    place.write("dir/sub/.git/HEAD", "x");
    let mut deep = PathBuf::from(place.path("dir"));
    (0..15).for_each(|_| deep.push("x".repeat(250)));
    std::fs::create_dir_all(&deep).unwrap();
    place.write("dir/sub/.git/config", &format!("[core]\nhooksPath = {}\n", deep.display()));
    std::fs::write(deep.join("0"), "#!/bin/cat\n").unwrap();
    for number in 1..60_000 {
        std::fs::hard_link(deep.join("0"), deep.join(number.to_string())).unwrap();
    }
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 300000; exec \"$@\"", "sh"]);
    limited.arg(env!("CARGO_BIN_EXE_tollgate")).args(["explain", "--policy", "agent", "x"]);
    let answer = Answer(limited.current_dir(place.path("dir")).output().unwrap());
    assert_eq!(answer.code(), 0, "{:?} {}", answer.0.status, answer.err());
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
