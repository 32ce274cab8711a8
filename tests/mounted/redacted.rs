//! Redacted files: what a reader gets is masked, whichever way it reads, and nothing is written.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_redact::{Detectors, Redactor};

use crate::harness::{View, can_mount};
use crate::mapped::Map;

pub(crate) const POLICY: &str = "[[rule]]\npath = 'r/**'\naction = 'redact'\n";

/// Text of about `length` bytes with secrets of several kinds in it.
pub(crate) fn text(length: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut line = 0;
    while text.len() < length {
        let secret = match line % 5 {
            0 => "db = postgres://app:xK9-tr33%40home@db.local/main",
            1 => "card 4111 1111 1111 1111",
            2 => "token = ghp_0123456789abcdefghijABCDEFGHIJ012345",
            3 => "password: \"s3cret-Word-99\"",
            _ => "nothing to see here",
        };
        text.extend(format!("{line:08}: {secret}{}\n", "-".repeat(line % 90)).bytes());
        line += 1;
    }
    text
}

pub(crate) fn masked(text: &[u8]) -> Vec<u8> {
    let mut masked = text.to_vec();
    Redactor::new(Detectors::default()).mask_all(&mut masked, |_| ());
    assert_ne!(masked, text, "there is something to mask");
    masked
}

/// A view of one redacted file, `r/f`, and what is to be read from it.
pub(crate) fn view_of(text: &[u8]) -> (View, Vec<u8>) {
    let view = View::with(POLICY, &[("r/f", ""), ("plain", "")]);
    fs::write(view.below("r/f"), text).unwrap();
    (view, masked(text))
}

fn errno_of<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn secrets_are_masked_wherever_a_request_begins() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(700_000));
    let file = File::open(view.at("r/f")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
    let mut buffer = vec![0; expected.len() + 1000];
    for (offset, length) in
        [(0, 1), (0, 4096), (40, 7), (4090, 20), (99_990, 131_072), (1, 600_001), (0, 700_900)]
    {
        let got = file.read_at(&mut buffer[..length], offset as u64).unwrap();
        let end = (offset + length).min(expected.len());
        assert!(buffer[..got] == expected[offset..end], "{length} bytes at {offset}");
    }
    // Each place in some lines, byte by byte.
    for offset in 3_000..3_400 {
        assert_eq!(file.read_at(&mut buffer[..1], offset).unwrap(), 1);
        assert_eq!(buffer[0], expected[usize::try_from(offset).unwrap()], "at {offset}");
    }
    assert_eq!(file.read_at(&mut buffer, expected.len() as u64).unwrap(), 0);
    assert!(fs::read(view.at("r/f")).unwrap() == expected);
}

#[test]
fn programs_see_masked_text_only() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(100_000));
    let run = |script: &str| {
        let output =
            Command::new("sh").args(["-c", script, "sh"]).arg(view.at("r/f")).output().unwrap();
        output.stdout
    };
    assert!(run("cat \"$1\"") == expected);
    assert!(run("dd if=\"$1\" bs=777 status=none") == expected);
    assert!(run("dd if=\"$1\" bs=64k iflag=direct status=none") == expected);
    assert!(run("cat < \"$1\" | cat") == expected);
    assert_eq!(run("grep -c xK9-tr33 \"$1\""), b"0\n");
    assert_ne!(run("grep -c 'app:[*]' \"$1\""), b"0\n");
    // A copy is one of what is shown.
    assert!(
        run(
            "cp \"$1\" \"$1\".copy 2>/dev/null; cp \"$1\" \"${1%/r/f}\"/copied; cat \"${1%/r/f}\"/copied"
        ) == expected
    );
    assert!(fs::read(view.below("copied")).unwrap() == expected);
    assert!(!view.below("r/f.copy").exists());
}

#[test]
fn mappings_show_masked_pages() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(50_000));
    let file = File::open(view.at("r/f")).unwrap();
    for shared in [false, true] {
        let map = Map::new(&file, expected.len(), shared, false).unwrap();
        assert!(map.read(0, expected.len()) == expected, "shared: {shared}");
    }
}

#[test]
fn nothing_is_written_or_made() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(9_000));
    let path = view.at("r/f");
    let open = |options: &mut OpenOptions| errno_of(options.open(&path));
    assert_eq!(open(OpenOptions::new().write(true)), libc::EROFS);
    assert_eq!(open(OpenOptions::new().read(true).write(true)), libc::EROFS);
    assert_eq!(open(OpenOptions::new().write(true).truncate(true)), libc::EROFS);
    assert_eq!(open(OpenOptions::new().append(true)), libc::EROFS);
    assert_eq!(errno_of(fs::remove_file(&path)), libc::EROFS);
    assert_eq!(errno_of(fs::write(view.at("r/new"), "x")), libc::EROFS);
    let (regular, mode) = (rustix::fs::FileType::RegularFile, rustix::fs::Mode::RUSR);
    let made = rustix::fs::mknodat(rustix::fs::CWD, view.at("r/new"), regular, mode, 0);
    assert_eq!(made, Err(rustix::io::Errno::ROFS));
    assert_eq!(errno_of(fs::rename(&path, view.at("out"))), libc::EROFS);
    assert_eq!(errno_of(fs::rename(view.at("plain"), view.at("r/in"))), libc::EROFS);
    assert!(fs::hard_link(&path, view.at("linked")).is_err());
    // Through a descriptor that is open already.
    let file = File::open(&path).unwrap();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    assert_eq!(errno_of(OpenOptions::new().write(true).open(&again)), libc::EROFS);
    assert!(fs::read(&again).unwrap() == expected);
    assert!(file.set_len(0).is_err());
    assert!(fs::read(&path).unwrap() == expected);
}

/// `mv` copies to where the name would not be masked, if it is told so, and then removes what it copied:
/// the secret would be gone.
#[test]
fn an_earlier_rule_about_changes_does_not_let_mv_destroy_what_is_masked() {
    if !can_mount() {
        return;
    }
    let changes =
        "[[rule]]\npath = '**'\noperation = ['write', 'create']\naction = 'passthrough'\n";
    let view =
        View::with(&format!("{changes}{POLICY}"), &[("r/f", "password: \"s3cret-Word-99\"\n")]);
    fs::create_dir(view.at("out")).unwrap();
    let (file, out) = (view.at("r/f"), view.at("out"));
    for (program, arguments) in [
        ("mv", vec![&file, &out]),
        ("rm", vec![&file]),
        ("touch", vec![&file]),
        ("mkdir", vec![&view.at("r/d")]),
    ] {
        let output = Command::new(program).args(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("Read-only file system"),
            "{program}: {said}"
        );
    }
    assert_eq!(errno_of(OpenOptions::new().append(true).open(&file)), libc::EROFS);
    assert_eq!(fs::read_dir(view.below("out")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(view.below("r/f")).unwrap(), "password: \"s3cret-Word-99\"\n");
}

/// One name of two is redacted: both are.
#[test]
fn the_strictest_name_counts() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    fs::create_dir(base.path().join("r")).unwrap();
    let text = text(5_000);
    fs::write(base.path().join("r/f"), &text).unwrap();
    fs::hard_link(base.path().join("r/f"), base.path().join("other")).unwrap();
    let view = View::of(base.path(), POLICY, &[]);
    assert!(fs::read(view.at("other")).unwrap() == masked(&text));
    let write = OpenOptions::new().write(true).open(view.at("other"));
    assert_eq!(errno_of(write), libc::EROFS);
}

#[test]
fn a_file_that_changes_is_masked_anew() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(400_000));
    let mut file = File::open(view.at("r/f")).unwrap();
    let mut begin = vec![0; 200_000];
    file.read_exact(&mut begin).unwrap();
    assert!(begin == expected[..200_000]);
    let other = text(900_000).split_off(100);
    fs::write(view.below("r/f"), &other).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest == masked(&other)[200_000..]);
    // Shorter than where it is read.
    fs::write(view.below("r/f"), "password = \"aB3-xyz-long\"\n").unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"password = \"************\"\n");
}

#[test]
fn a_file_beyond_the_limit_is_denied() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'r/**'\naction = 'redact'\nmax_size = 1000\n";
    let view = View::with(policy, &[("r/small", "plain text"), ("r/large", &"x".repeat(1001))]);
    assert_eq!(errno_of(File::open(view.at("r/large"))), libc::EACCES);
    let mut small = File::open(view.at("r/small")).unwrap();
    fs::write(view.below("r/small"), "y".repeat(1001)).unwrap();
    assert_eq!(errno_of(small.read(&mut [0; 10])), libc::EACCES);
    fs::write(view.below("r/small"), "z").unwrap();
    assert_eq!(fs::read_to_string(view.at("r/small")).unwrap(), "z");
}

/// Whoever holds a file that shows its own bytes keeps it from being opened as a redacted one, and
/// not the other way round.
#[test]
fn two_ways_to_be_open_do_not_meet() {
    if !can_mount() {
        return;
    }
    let redact = "[[rule]]\npath = 'r/**'\naction = 'redact'\ncontent = { magic = 'S' }\n";
    for default in ["passthrough", "userspace"] {
        do_not_meet(&format!("default = '{default}'\n{redact}"));
    }
}

fn do_not_meet(policy: &str) {
    let view = View::with(policy, &[("r/f", "password = \"aB3-xyz-long\"\n")]);
    let plain = File::open(view.at("r/f")).unwrap();
    fs::write(view.below("r/f"), "S password = \"aB3-xyz-long\"\n").unwrap();
    assert_eq!(errno_of(File::open(view.at("r/f"))), libc::EBUSY);
    drop(plain);
    let mut redacted = loop {
        // A close is reported without anybody waiting for it.
        match File::open(view.at("r/f")) {
            Ok(file) => break file,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let mut shown = String::new();
    redacted.read_to_string(&mut shown).unwrap();
    assert_eq!(shown, "S password = \"************\"\n");
    fs::write(view.below("r/f"), "password = \"aB3-xyz-long\"\n").unwrap();
    assert_eq!(errno_of(File::open(view.at("r/f"))), libc::EBUSY);
}

/// An open file that shows its own bytes gets no name under which it is masked.
#[test]
fn an_open_plain_file_does_not_become_a_redacted_one() {
    if !can_mount() {
        return;
    }
    let view = View::with(POLICY, &[("r/f", ""), ("plain", "password = \"aB3-xyz-long\"\n")]);
    let mut open = OpenOptions::new().read(true).write(true).open(view.at("plain")).unwrap();
    assert_eq!(errno_of(fs::rename(view.at("plain"), view.at("r/g"))), libc::EROFS);
    let mut shown = String::new();
    open.read_to_string(&mut shown).unwrap();
    assert_eq!(shown, "password = \"aB3-xyz-long\"\n");
    // As `mv` does then: by a copy, which nobody may make there.
    assert_eq!(errno_of(fs::copy(view.at("plain"), view.at("r/g"))), libc::EROFS);
    assert!(view.at("plain").exists());
}

/// git compares times and sizes, which are those below; what it reads of a file is masked.
#[test]
fn git_finds_a_redacted_tree_unchanged() {
    if !can_mount() {
        return;
    }
    let secret = "password = \"aB3-xyz-long\"\n";
    let view = View::with(POLICY, &[("r/f", secret), ("plain", "text\n")]);
    let git = |place: &std::path::Path, arguments: &[&str]| {
        let mut command = Command::new("git");
        let identity = ["-c", "user.name=test", "-c", "user.email=test@test", "-C"];
        command.args(identity).arg(place).args(arguments);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let below = view.below("");
    // Older than the index: else git reads what it would have found unchanged by its times.
    for name in ["r/f", "plain"] {
        let old = std::time::SystemTime::now() - Duration::from_secs(100);
        File::options().write(true).open(below.join(name)).unwrap().set_modified(old).unwrap();
    }
    git(&below, &["init", "-q"]);
    git(&below, &["add", "r/f", "plain"]);
    git(&below, &["commit", "-qm", "first"]);
    let top = view.at("");
    git(&top, &["config", "safe.directory", "*"]);
    assert_eq!(git(&top, &["status", "--porcelain", "r", "plain"]), "");
    assert_eq!(git(&top, &["hash-object", "plain"]), git(&below, &["hash-object", "plain"]));
    assert_ne!(git(&top, &["hash-object", "r/f"]), git(&below, &["hash-object", "r/f"]));
    assert_eq!(fs::read_to_string(view.below("r/f")).unwrap(), secret);
}

/// Streams that read ahead, many at once, while the memory for them has a maximum.
#[test]
fn many_streams_read_the_same_within_the_budget() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(1 << 20));
    // What changed a moment ago is not read ahead.
    std::thread::sleep(Duration::from_secs(4));
    let read = |step: usize| {
        let mut file = File::open(view.at("r/f")).unwrap();
        let mut all: Vec<u8> = Vec::new();
        let mut buffer = vec![0; step];
        loop {
            match file.read(&mut buffer).unwrap() {
                0 => break,
                got => all.extend(&buffer[..got]),
            }
        }
        assert!(all == expected, "in steps of {step}");
    };
    [4097, 128 << 10, 1 << 20, 3 << 20].into_iter().for_each(read);
    std::thread::scope(|scope| {
        (0..64).for_each(|_| {
            scope.spawn(|| read(128 << 10));
        });
    });
    let pid = view.server_report()["pid"].as_u64().unwrap();
    let peak = peak_kib(pid);
    assert!(peak < (32 + 32 + 16) << 10, "{peak} KiB at the most");
    // A stream that is read ahead sees a change at once, too.
    let mut file = File::open(view.at("r/f")).unwrap();
    let mut part = vec![0; 128 << 10];
    (0..4).for_each(|_| file.read_exact(&mut part).unwrap());
    let other = text(1 << 20).split_off(1000);
    fs::write(view.below("r/f"), &other).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest == masked(&other)[512 << 10..]);
}

/// The most memory that the process ever used.
fn peak_kib(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What decides whether something is masked may be behind what was the file's end a moment ago.
#[test]
fn a_masked_file_that_is_cut_and_grows_while_it_is_read_has_no_errors() {
    if !can_mount() {
        return;
    }
    let view = View::with(POLICY, &[("r/f", "")]);
    let path = view.below("r/f");
    let (file, more) = (File::create(&path).unwrap(), vec![b'-'; 300_000]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.set_len(0).unwrap();
                file.write_all_at(&[b'-'; 3000], 0).unwrap();
                file.write_all_at(&more, 3000).unwrap();
            }
        });
        let failed: Vec<_> =
            (0..300).map(|_| fs::read(view.at("r/f"))).filter_map(Result::err).collect();
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{} {failed:?}", failed.len());
    });
}
