//! Names: making, removing, moving, linking, listing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, link, linkat, lstat, mkdir, mknodat, open,
    readlink, rename, renameat_with, rmdir, stat, statat, symlink, unlink, unlinkat,
};

use super::{Log, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("directories", directories),
    ("rename", renames),
    ("rename flags", rename_flags),
    ("hard links", hard_links),
    ("symbolic links", symbolic_links),
    ("special files", special_files),
    ("listing", listing),
    ("strange names", strange_names),
    ("deep", deep),
];

const MODE: Mode = Mode::from_raw_mode(0o755);

fn directories(dir: &Path, log: &mut Log) {
    let at = |name: &str| dir.join(name);
    std::fs::write(at("file"), "x").unwrap();
    log.note("mkdir", mkdir(at("d"), MODE));
    log.note("again", mkdir(at("d"), MODE));
    log.note("over a file", mkdir(at("file"), MODE));
    log.note("in nothing", mkdir(at("absent/d"), MODE));
    log.note("in a file", mkdir(at("file/d"), MODE));
    log.note("sub", mkdir(at("d/sub"), MODE));
    log.note("links", stat(at("d")).map(|stat| stat.st_nlink));
    log.note("not empty", rmdir(at("d")));
    log.note("unlink a directory", unlink(at("d/sub")));
    log.note("rmdir a file", rmdir(at("file")));
    log.note("rmdir .", rmdir(at("d/sub/.")));
    log.note("rmdir ..", rmdir(at("d/sub/..")));
    log.note("rmdir absent", rmdir(at("absent")));
    log.note("AT_REMOVEDIR", unlinkat(CWD, at("d/sub"), AtFlags::REMOVEDIR));
    let fd = open(at("d"), OFlags::RDONLY | OFlags::DIRECTORY, MODE).unwrap();
    log.note("rmdir while open", rmdir(at("d")));
    log.note("make in what is gone", rustix::fs::mkdirat(&fd, "x", MODE));
    log.note("links", rustix::fs::fstat(&fd).map(|stat| stat.st_nlink));
    log.note("slash", mkdir(at("slash/"), MODE));
    log.note("slash", rmdir(at("slash/")));
}

/// A small tree to move things about in.
fn tree(dir: &Path) {
    for name in ["a", "full/x", "empty"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("one"), "1").unwrap();
    std::fs::write(dir.join("two"), "2").unwrap();
    std::fs::hard_link(dir.join("one"), dir.join("same")).unwrap();
}

fn renames(dir: &Path, log: &mut Log) {
    tree(dir);
    for (from, to) in [
        ("absent", "x"),
        ("one", "new"),
        ("new", "two"),
        ("two", "same"),
        ("same", "a/moved"),
        ("a", "empty"),
        ("empty", "full"),
        ("empty", "two"),
        ("two", "full"),
        ("full", "full/x/inside"),
        ("full/x", "full"),
        ("full", "empty/"),
        ("empty", "absent/x"),
        ("empty/.", "y"),
        ("one", "one"),
        ("two", "absent/"),
    ] {
        log.note(&format!("{from} to {to}"), rename(dir.join(from), dir.join(to)));
    }
    log.note("256 bytes", rename(dir.join("two"), dir.join("x".repeat(256))));
}

fn rename_flags(dir: &Path, log: &mut Log) {
    tree(dir);
    let mut go = |from: &str, to: &str, flags| {
        let outcome = renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags);
        log.note(&format!("{from} to {to} {flags:?}"), outcome);
    };
    go("one", "two", RenameFlags::NOREPLACE);
    go("one", "fresh", RenameFlags::NOREPLACE);
    go("fresh", "two", RenameFlags::EXCHANGE);
    go("two", "absent", RenameFlags::EXCHANGE);
    go("two", "full", RenameFlags::EXCHANGE);
    go("a", "full/x", RenameFlags::EXCHANGE);
    go("full", "full/x", RenameFlags::EXCHANGE);
    go("two", "x", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE);
}

fn hard_links(dir: &Path, log: &mut Log) {
    tree(dir);
    let at = |name: &str| dir.join(name);
    log.note("link", link(at("one"), at("three")));
    log.note("links", stat(at("one")).map(|stat| stat.st_nlink));
    log.note("over", link(at("one"), at("two")));
    log.note("absent", link(at("absent"), at("x")));
    log.note("a directory", link(at("a"), at("x")));
    log.note("into nothing", link(at("one"), at("absent/x")));
    let same = stat(at("one")).unwrap().st_ino == stat(at("three")).unwrap().st_ino;
    log.value("one inode", same);
    log.note("unlink", unlink(at("one")));
    log.note("links", stat(at("three")).map(|stat| stat.st_nlink));
    std::fs::write(at("three"), "changed").unwrap();
    log.value("through the other", std::fs::read_to_string(at("same")).ok());
    log.note("symlink", symlink("two", at("sym")));
    log.note("of a symlink", link(at("sym"), at("sym2")));
    log.note("followed", linkat(CWD, at("sym"), CWD, at("sym3"), AtFlags::SYMLINK_FOLLOW));
    for name in ["sym2", "sym3"] {
        log.note(name, lstat(at(name)).map(|stat| FileType::from_raw_mode(stat.st_mode)));
    }
}

fn symbolic_links(dir: &Path, log: &mut Log) {
    let at = |name: &str| dir.join(name);
    std::fs::write(at("file"), "x").unwrap();
    for (target, name) in
        [("file", "good"), ("absent", "bad"), ("b", "a"), ("a", "b"), ("..", "up")]
    {
        log.note(name, symlink(target, at(name)));
        log.note("read", readlink(at(name), Vec::new()));
        log.note("size", lstat(at(name)).map(|stat| stat.st_size));
        log.note("follow", stat(at(name)).map(|stat| FileType::from_raw_mode(stat.st_mode)));
    }
    log.note("over", symlink("x", at("good")));
    log.note("empty", symlink("", at("empty")));
    log.note("4095 bytes", symlink("x".repeat(4095), at("long")));
    log.note("size", lstat(at("long")).map(|stat| stat.st_size));
    log.note("4096 bytes", symlink("x".repeat(4096), at("longer")));
    log.note("no link", readlink(at("file"), Vec::new()));
    log.note("through", readlink(at("good/x"), Vec::new()));
    log.note("unlink", unlink(at("good")));
    log.note("not the target", stat(at("file")).map(|stat| stat.st_size));
}

fn special_files(dir: &Path, log: &mut Log) {
    let mut make = |name: &str, kind, device| {
        log.note(name, mknodat(CWD, dir.join(name), kind, Mode::from_raw_mode(0o640), device));
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("file", FileType::RegularFile, 0);
    make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make("block", FileType::BlockDevice, rustix::fs::makedev(240, 9));
    make("fifo", FileType::Fifo, 0);
    for name in ["fifo", "socket", "null", "block"] {
        let kind = stat(dir.join(name)).map(|stat| FileType::from_raw_mode(stat.st_mode));
        log.note(name, kind);
    }
    let reader = open(dir.join("fifo"), OFlags::RDONLY | OFlags::NONBLOCK, MODE);
    let writer = open(dir.join("fifo"), OFlags::WRONLY | OFlags::NONBLOCK, MODE);
    let ends = (log.opened("read end", reader), log.opened("write end", writer));
    if let (Some(reader), Some(writer)) = ends {
        log.note("write", rustix::io::write(&writer, b"through the pipe"));
        let mut buffer = [0; 32];
        log.note("read", rustix::io::read(&reader, &mut buffer[..]));
        log.value("bytes", buffer);
    }
    log.opened("socket", open(dir.join("socket"), OFlags::RDONLY, MODE));
    let bound = std::os::unix::net::UnixListener::bind(dir.join("bound"));
    log.value("bind", bound.as_ref().map(|_| ()).map_err(std::io::Error::raw_os_error));
    let connected = std::os::unix::net::UnixStream::connect(dir.join("bound"));
    log.value("connect", connected.map(|_| ()).map_err(|error| error.raw_os_error()));
}

fn listing(dir: &Path, log: &mut Log) {
    for number in 0..1500 {
        std::fs::write(dir.join(format!("entry {number}")), "").unwrap();
    }
    std::fs::create_dir(dir.join("dir")).unwrap();
    std::os::unix::fs::symlink("dir", dir.join("link")).unwrap();
    let names = || {
        let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
        entries.map(|e| (e.file_name(), e.file_type().unwrap())).collect::<Vec<_>>()
    };
    let all = names();
    log.value("entries", all.len());
    log.value("sorted", all.iter().map(|(name, _)| name).collect::<BTreeSet<_>>());
    for (name, kind) in all.iter().filter(|(name, _)| name == "dir" || name == "link") {
        log.value("type", (name, kind.is_dir(), kind.is_symlink()));
    }
    // Removing while listing: nothing that stays is left out.
    let mut left = 0;
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if name.as_bytes().ends_with(b"7") {
            std::fs::remove_file(entry.path()).unwrap();
        } else {
            left += 1;
        }
    }
    log.value("left", (left, names().len()));
    log.value(
        "inode numbers",
        all.iter().all(|(name, _)| {
            let path = dir.join(name);
            name.as_bytes().ends_with(b"7") || std::fs::symlink_metadata(path).is_ok()
        }),
    );
    log.value(
        "a file",
        std::fs::read_dir(dir.join("entry 0")).map(|_| ()).map_err(|e| e.raw_os_error()),
    );
}

fn strange_names(dir: &Path, log: &mut Log) {
    let names: [&[u8]; 8] = [
        b"\xff\xfe",
        b"new\nline",
        b" ",
        b"*",
        b"\\",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"a\x01b",
    ];
    for name in names {
        let path = dir.join(OsStr::from_bytes(name));
        log.value("write", std::fs::write(&path, name).map_err(|error| error.raw_os_error()));
        log.value("read", std::fs::read(&path).map_err(|error| error.raw_os_error()));
    }
    let found: BTreeSet<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    log.value("listed", found);
}

fn deep(dir: &Path, log: &mut Log) {
    // Deeper than one path can say: by descriptors.
    let mut here = open(dir, OFlags::RDONLY | OFlags::DIRECTORY, MODE).unwrap();
    let name = "d".repeat(200);
    for depth in 0..30 {
        if log.note(&format!("mkdir {depth}"), rustix::fs::mkdirat(&here, &name, MODE)).is_none() {
            return;
        }
        let next = rustix::fs::openat(&here, &name, OFlags::RDONLY | OFlags::DIRECTORY, MODE);
        let Some(next) = log.opened("open", next) else { return };
        here = next;
    }
    log.opened("file", rustix::fs::openat(&here, "file", OFlags::CREATE | OFlags::WRONLY, MODE));
    log.note("stat", statat(&here, "file", AtFlags::empty()).map(|stat| stat.st_size));
    log.note("unlink", unlinkat(&here, "file", AtFlags::empty()));
    // The snapshot walks by path: leave nothing deeper than that.
    let _ = std::process::Command::new("rm").arg("-rf").arg(dir.join(&name)).status();
}
