//! Files with several names, of which others move one: into another directory of the policy, out of
//! one, or to where no rule refuses it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};

use crate::project::{can_mount, tollgate};

/// How long names count that were seen.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Longer than that, so that each look is the first one after it.
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

const BOTH: [(&str, &str); 2] = [("hid", "hide"), DENY];
/// Alone: where a rule hides, names of such files expire in the kernel.
const DENY: (&str, &str) = ("den", "deny");

/// The directories `a`, `b` and `c`, of one policy, and a command in their views that reads files.
struct Moving {
    base: tempfile::TempDir,
    reader: Child,
    said: BufReader<ChildStdout>,
}

impl Moving {
    /// With files of the names in each of `names`, of which the directories are made as well. In each
    /// directory `actions` hold for `hid` and `den`.
    fn new(directories: &[&str], actions: &[(&str, &str)], names: &[&[&str]]) -> Self {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        let mut policy = String::new();
        for directory in directories {
            let table = if *directory == "a" { "rule" } else { "view.rule" };
            for kind in ["pub", "hid", "den"] {
                fs::create_dir_all(path(directory).join(kind)).unwrap();
            }
            if *directory != "a" {
                policy += &format!("[[view]]\ndir = '{}'\n", path(directory).display());
            }
            for (kind, action) in actions {
                policy += &format!("[[{table}]]\npath = '{kind}/**'\naction = '{action}'\n");
            }
        }
        fs::write(path("p.toml"), policy).unwrap();
        for file in names {
            for name in *file {
                fs::create_dir_all(path(name).parent().unwrap()).unwrap();
                if *name == file[0] {
                    fs::write(path(name), "content\n").unwrap();
                } else {
                    fs::hard_link(path(file[0]), path(name)).unwrap();
                }
            }
        }
        let script = "while read -r f; do cat \"$f\" 2>/dev/null || echo refused; done";
        let mut command = tollgate();
        command.args(["run", "--quiet", "--attr-timeout", &TIMEOUT.as_secs_f64().to_string()]);
        command.arg("--policy").arg(path("p.toml")).arg(path("a")).args(["--", "sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reader = command.spawn().unwrap();
        let said = BufReader::new(reader.stdout.take().unwrap());
        Self { base, reader, said }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Whether CMD can read it.
    fn reads(&mut self, name: &str) -> bool {
        let path = self.path(name);
        writeln!(self.reader.stdin.as_mut().unwrap(), "{}", path.display()).unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert!(["content\n", "refused\n"].contains(&&*line), "{line:?}");
        line == "content\n"
    }

    /// It comes to be so, and stays so.
    fn comes_to_be_read(&mut self, name: &str, is_read: bool) {
        let start = Instant::now();
        while self.reads(name) != is_read {
            assert!(start.elapsed() < PATIENCE, "{name} is read: {}", !is_read);
            std::thread::sleep(PAUSE);
        }
        for _ in 0..3 {
            std::thread::sleep(PAUSE);
            assert_eq!(self.reads(name), is_read, "{name}, later");
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        drop(self.reader.stdin.take());
        let _ = self.reader.wait();
    }
}

#[test]
fn a_name_that_comes_from_another_view_counts() {
    if !can_mount() {
        return;
    }
    let all: [[&str; 2]; 5] = [
        ["a/pub/1", "b/hid/1"],
        ["a/pub/2", "b/den/2"],
        ["a/pub/3", "b/pub/3"],
        ["a/pub/4", "b/hid/4"],
        ["a/pub/5", "b/pub/d/5"],
    ];
    let names: Vec<_> = all.iter().map(|names| &names[..]).collect();
    let mut moving = Moving::new(&["a", "b", "c"], &BOTH, &names);
    fs::create_dir(moving.path("a/den/d")).unwrap();
    let read =
        ["a/pub/1", "a/pub/2", "a/pub/3", "a/pub/4", "a/pub/5"].map(|name| moving.reads(name));
    assert_eq!(read, [false, false, true, false, true]);
    moving.rename("b/hid/1", "a/hid/1");
    moving.rename("b/den/2", "a/hid/2");
    moving.rename("b/pub/3", "a/den/3");
    moving.rename("b/hid/4", "c/hid/4");
    // The name goes with its directory, which changes nothing of the file.
    let (from, to) = (moving.path("b/pub/d"), moving.path("a/den/d"));
    rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).unwrap();
    for name in ["a/pub/3", "a/pub/5", "a/pub/1", "a/pub/2", "a/pub/4"] {
        moving.comes_to_be_read(name, false);
    }
}

#[test]
fn a_hidden_name_that_comes_from_outside_counts_once_it_is_looked_up() {
    if !can_mount() {
        return;
    }
    let mut moving = Moving::new(&["a"], &BOTH, &[&["a/pub/f", "outside"]]);
    assert!(moving.reads("a/pub/f"));
    moving.rename("outside", "a/hid/l");
    assert!(!moving.reads("a/hid/l"));
    moving.comes_to_be_read("a/pub/f", false);
}

#[test]
fn a_name_whose_directory_left_the_rule_refuses_no_more() {
    if !can_mount() {
        return;
    }
    let mut moving = Moving::new(&["a"], &[DENY], &[&["a/den/e/f", "a/pub/l"]]);
    assert!(!moving.reads("a/pub/l") && !moving.reads("a/den/e/f"));
    moving.rename("a/den/e", "a/pub/e");
    moving.comes_to_be_read("a/pub/l", true);
}

#[test]
fn the_last_name_decides_alone() {
    if !can_mount() {
        return;
    }
    let mut moving = Moving::new(&["a", "b"], &[DENY], &[&["a/den/e/f", "b/pub/l"]]);
    for name in ["b/pub/l", "a/den/e/f"] {
        assert!(!moving.reads(name));
        std::thread::sleep(PAUSE);
    }
    moving.rename("b/pub/l", "a/den/l");
    std::thread::sleep(PAUSE);
    assert!(!moving.reads("a/den/l"));
    moving.rename("a/den/e", "a/pub/moved");
    std::thread::sleep(PAUSE);
    assert!(!moving.reads("a/pub/moved/f"));
    fs::remove_file(moving.path("a/den/l")).unwrap();
    std::thread::sleep(PAUSE);
    moving.comes_to_be_read("a/pub/moved/f", true);
}
