//! One inode, one I/O mode: however many open it, in whatever way, none gets `EIO`.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{View, can_mount};
use crate::mapped::Map;
use crate::small::soon;

/// Runs a shell command in another process; `$1` is `path`.
#[track_caller]
fn shell(script: &str, path: &Path) -> String {
    let output = Command::new("sh").args(["-ec", script, "sh"]).arg(path).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{script}`: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything another process may do with a file that this one has open.
fn use_from_another_process(path: &Path, held: &mut fs::File) {
    assert_eq!(shell("cat \"$1\"", path), "first\n");
    shell("echo second >> \"$1\"", path);
    let mut text = String::new();
    held.seek(SeekFrom::Start(0)).unwrap();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first\nsecond\n");
    shell("dd if=/dev/zero of=\"$1\" bs=4096 count=1 oflag=direct conv=notrunc status=none", path);
    assert_eq!(held.metadata().unwrap().len(), 4096);
    let direct = "dd if=\"$1\" bs=4096 count=1 iflag=direct status=none | tr -d '\\0' | wc -c";
    assert_eq!(shell(direct, path).trim(), "0");
    held.seek(SeekFrom::Start(10)).unwrap();
    held.write_all(b"held").unwrap();
    assert_eq!(shell("tr -d '\\0' < \"$1\"", path), "held");
    let map = Map::new(&*held, 4096, true, true).unwrap();
    map.write(0, b"map ");
    map.sync();
    assert_eq!(shell("tr -d '\\0' < \"$1\"", path), "map held");
    shell("truncate -s 3 \"$1\"", path);
    assert_eq!(held.metadata().unwrap().len(), 3);
    shell("printf 'first\\n' > \"$1\"", path);
}

/// Where the bytes go: past the server, or through it.
#[test]
fn each_policy_takes_its_road() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "first\n")]);
    assert_eq!(fs::read_to_string(view.at("f")).unwrap(), "first\n");
    fs::write(view.at("f"), "again\n").unwrap();
    // The first may come from the view's page cache, if it took seconds to get here.
    assert_eq!(view.count("open_passthrough") + view.count("open_cached"), 2);
    assert_eq!((view.count("read"), view.count("write")), (0, 0));
    let view = View::with("default = 'userspace'", &[("f", "first\n")]);
    assert_eq!(fs::read_to_string(view.at("f")).unwrap(), "first\n");
    fs::write(view.at("f"), "again\n").unwrap();
    assert_eq!(view.count("open_userspace"), 2);
    assert_eq!((view.count("read_bytes"), view.count("write_bytes")), (6, 6));
}

#[test]
fn any_way_to_open_goes_with_any_other() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::with(policy, &[("f", "first\n")]);
        let path = view.at("f");
        let read_write = || fs::File::options().read(true).write(true).open(&path).unwrap();
        use_from_another_process(&path, &mut read_write());
        // The first opener is one of a different kind each time.
        let reader = fs::File::open(&path).unwrap();
        use_from_another_process(&path, &mut read_write());
        drop(reader);
        let direct =
            fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        use_from_another_process(&path, &mut read_write());
        drop(direct);
        let appender = fs::File::options().append(true).open(&path).unwrap();
        use_from_another_process(&path, &mut read_write());
        drop(appender);
        assert_eq!(fs::read(view.below("f")).unwrap(), b"first\n");
    }
}

/// A log that two write, or that somebody copies and empties: each append goes to the end, wherever that is
/// by now.
#[test]
fn what_is_appended_goes_behind_what_others_appended() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::with(policy, &[("log", "first\n")]);
        let append = |path| fs::File::options().append(true).open(path).unwrap();
        let (mut inside, mut outside) = (append(view.at("log")), append(view.below("log")));
        let mut expected = String::from("first\n");
        for round in 0..50 {
            for (file, side) in [(&mut inside, "in"), (&mut outside, "out, and longer")] {
                let line = format!("{side} {round}\n");
                file.write_all(line.as_bytes()).unwrap();
                expected.push_str(&line);
            }
            assert_eq!(fs::read_to_string(view.below("log")).unwrap(), expected, "{policy:?}");
            if round == 20 {
                outside.set_len(0).unwrap();
                expected.clear();
            }
        }
        assert_eq!(fs::read_to_string(view.at("log")).unwrap(), expected, "{policy:?}");
        // More than one request holds.
        let large = vec![b'x'; 5 << 20];
        inside.write_all(&large).unwrap();
        let text = fs::read(view.below("log")).unwrap();
        assert!(text[expected.len()..] == large, "{policy:?}");
        // Where a whole number of requests is gone, too; and where nobody has appended before.
        for size in [3_u64 << 20, (3 << 20) - 100] {
            let mut inside = inside.try_clone().unwrap();
            for name in ["log", "fresh"] {
                if name == "fresh" {
                    fs::write(view.below(name), "").unwrap();
                    inside = append(view.at(name));
                }
                let outside = append(view.below(name));
                outside.set_len(size - 1).unwrap();
                soon("it has grown", || fs::metadata(view.at(name)).unwrap().len() == size - 1);
                if name == "log" {
                    inside.write_all(b"x").unwrap();
                }
                outside.set_len(0).unwrap();
                inside.write_all(b"one\n").unwrap();
                inside.write_all(b"two\n").unwrap();
                let text = fs::read(view.below(name)).unwrap();
                assert!(text == b"one\ntwo\n", "{policy:?} {size} {name}: {}", text.len());
            }
        }
    }
}

const TWO_NAMES: &str = "[[rule]]\npath = 'slow'\naction = 'userspace'\n";

/// An inode with two names of which one asks for user space, opened by either first.
#[test]
fn two_names_of_one_inode_agree() {
    if !can_mount() {
        return;
    }
    for (first, second) in [("fast/f", "slow/f"), ("slow/f", "fast/f")] {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("fast")).unwrap();
        fs::create_dir(base.path().join("slow")).unwrap();
        fs::write(base.path().join("fast/f"), "first\n").unwrap();
        fs::hard_link(base.path().join("fast/f"), base.path().join("slow/f")).unwrap();
        let view = View::of(base.path(), TWO_NAMES, &[]);
        let mut held = fs::File::options().read(true).write(true).open(view.at(first)).unwrap();
        use_from_another_process(&view.at(second), &mut held);
    }
}

/// A file whose content comes to ask for another mode while it is open.
#[test]
fn the_mode_holds_while_a_handle_is_open() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = '**'\ncontent = { magic = 'map' }\naction = 'userspace'\n";
    let view = View::with(policy, &[("f", "first\n")]);
    let mut held = fs::File::options().read(true).write(true).open(view.at("f")).unwrap();
    use_from_another_process(&view.at("f"), &mut held);
    drop(held);
    fs::write(view.at("f"), "map me").unwrap();
    let mut held = fs::File::options().read(true).write(true).open(view.at("f")).unwrap();
    assert_eq!(shell("cat \"$1\"", &view.at("f")), "map me");
    held.write_all(b"fir").unwrap();
    assert_eq!(shell("cat \"$1\"", &view.at("f")), "fir me");
}

/// Many processes at once, each with its own way to open, over and over.
#[test]
fn openers_that_race_get_no_error() {
    if !can_mount() {
        return;
    }
    let view = View::with(TWO_NAMES, &[("fast/f", "first\n"), ("slow/f", "first\n")]);
    for name in ["fast/f", "slow/f"] {
        let path = view.at(name);
        let loops = [
            "for i in $(seq 60); do cat \"$1\" > /dev/null; done",
            "for i in $(seq 60); do echo x >> \"$1\"; done",
            "for i in $(seq 60); do dd if=\"$1\" of=/dev/null bs=4096 iflag=direct status=none; done",
            "for i in $(seq 60); do truncate -s 4096 \"$1\"; done",
        ];
        std::thread::scope(|scope| {
            for script in loops {
                scope.spawn(|| shell(script, &path));
            }
        });
    }
}
