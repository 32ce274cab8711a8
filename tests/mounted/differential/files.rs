//! Contents of files.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, copy_file_range,
    fallocate, fdatasync, fstat, fsync, ftruncate, linkat, open, seek, stat, unlink,
};
use rustix::io::{Errno, pread, pwrite, read, write};

use super::{Log, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("read and write", read_and_write),
    ("append", append),
    ("truncate", truncate),
    ("open flags", open_flags),
    ("holes", holes),
    ("copy", copy),
    ("unnamed", unnamed),
    ("removed while open", removed_while_open),
    ("locks", locks),
    ("far offsets", far_offsets),
    ("sync", sync),
    ("execute", execute),
];

const RW: OFlags = OFlags::RDWR.union(OFlags::CREATE);
const MODE: Mode = Mode::from_raw_mode(0o644);

/// Reads at most `length` bytes at `offset`, as text.
fn text(fd: impl AsFd, offset: u64, length: usize) -> Result<String, Errno> {
    let mut buffer = vec![0; length];
    let taken = pread(fd, &mut buffer[..], offset)?;
    Ok(buffer[..taken].escape_ascii().to_string())
}

fn read_and_write(dir: &Path, log: &mut Log) {
    let path = dir.join("f");
    let Some(fd) = log.opened("create", open(&path, RW, MODE)) else { return };
    log.note("write", write(&fd, b"hello, world"));
    log.note("write inside", pwrite(&fd, b"HE", 0));
    log.note("write beyond", pwrite(&fd, b"end", 100));
    log.note("read all", text(&fd, 0, 200));
    log.note("read at the end", text(&fd, 103, 10));
    log.note("read past the end", text(&fd, 1000, 10));
    log.note("write nothing", write(&fd, b""));
    log.note("size", fstat(&fd).map(|stat| stat.st_size));
    let reader = log.opened("read only", open(&path, OFlags::RDONLY, MODE));
    let writer = log.opened("write only", open(&path, OFlags::WRONLY, MODE));
    if let (Some(reader), Some(writer)) = (reader, writer) {
        log.note("write to a reader", write(&reader, b"x").map(|_| ()));
        log.note("read from a writer", text(&writer, 0, 1));
        log.note("write by another", pwrite(&writer, b"new", 4));
        log.note("seen by the reader", text(&reader, 0, 12));
        log.note("seen by the first", text(&fd, 0, 12));
    }
    let big: Vec<u8> =
        (0..3_000_000_u32).map(|n| n.to_le_bytes()[usize::from(n % 3 == 1)]).collect();
    log.note("write 3 MB", pwrite(&fd, &big, 7));
    let mut back = vec![0; big.len() + 10];
    log.note("read 3 MB", pread(&fd, &mut back[..], 7));
    log.value("the same bytes", back[..big.len()] == big[..]);
}

fn append(dir: &Path, log: &mut Log) {
    let path = dir.join("f");
    let flags = RW.union(OFlags::APPEND);
    let both = (open(&path, flags, MODE), open(&path, flags, MODE));
    let (Ok(one), Ok(two)) = both else { return log.value("open", both.0.is_ok()) };
    for _ in 0..5 {
        log.note("one", write(&one, &[b'1'; 300]));
        log.note("two", write(&two, &[b'2'; 300]));
    }
    log.note("at an offset", pwrite(&one, b"tail", 0));
    log.note("size", fstat(&one).map(|stat| stat.st_size));
    log.note("tail", text(&one, 2990, 100));
    log.note("start", text(&one, 298, 4));
}

fn truncate(dir: &Path, log: &mut Log) {
    let path = dir.join("f");
    let Some(fd) = log.opened("create", open(&path, RW, MODE)) else { return };
    log.note("write", write(&fd, b"0123456789"));
    log.note("shorten", ftruncate(&fd, 4));
    log.note("lengthen", ftruncate(&fd, 8));
    log.note("read", text(&fd, 0, 20));
    log.note("too far", ftruncate(&fd, u64::MAX));
    let reader = open(&path, OFlags::RDONLY, MODE).unwrap();
    log.note("through a reader", ftruncate(&reader, 0));
    log.opened("O_TRUNC", open(&path, OFlags::WRONLY | OFlags::TRUNC, MODE));
    log.note("size", fstat(&fd).map(|stat| stat.st_size));
    log.note("read empty", text(&reader, 0, 5));
    log.note("write after", pwrite(&fd, b"x", 3));
    log.note("read after", text(&reader, 0, 5));
}

fn open_flags(dir: &Path, log: &mut Log) {
    let at = |name: &str| dir.join(name);
    std::fs::write(at("file"), "x").unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    std::os::unix::fs::symlink("absent", at("dangling")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let (create, excl) = (OFlags::CREATE, OFlags::EXCL);
    for (name, flags) in [
        ("absent", OFlags::RDONLY),
        ("file", create | excl),
        ("link", create | excl),
        ("file", OFlags::DIRECTORY),
        ("dir", OFlags::DIRECTORY),
        ("dir", OFlags::WRONLY),
        ("dir", OFlags::RDWR),
        ("dir", create),
        ("link", OFlags::NOFOLLOW),
        ("link", OFlags::RDONLY),
        ("link", OFlags::NOFOLLOW | OFlags::PATH),
        ("dangling", OFlags::RDONLY),
        ("dangling", create | excl),
        ("dangling", create | OFlags::WRONLY),
        ("absent", OFlags::RDONLY),
        ("loop", OFlags::RDONLY),
        ("file/x", OFlags::RDONLY),
        ("file/", OFlags::RDONLY),
        ("new/", create | OFlags::WRONLY),
        ("dir/../file", OFlags::RDONLY),
        ("file", OFlags::RDWR | OFlags::NOATIME),
        ("file", OFlags::RDONLY | OFlags::TRUNC),
        ("file", OFlags::WRONLY | OFlags::DSYNC),
        ("file", OFlags::WRONLY | OFlags::NONBLOCK),
    ] {
        log.opened(&format!("{name} {flags:?}"), open(at(name), flags, MODE));
    }
    let long = "x".repeat(255);
    log.opened("255 bytes", open(at(&long), create, MODE));
    log.opened("256 bytes", open(at(&(long + "x")), create, MODE));
    log.opened("a path too long", open(at(&"d/".repeat(2500)), OFlags::RDONLY, MODE));
}

fn holes(dir: &Path, log: &mut Log) {
    let Some(fd) = log.opened("create", open(dir.join("f"), RW, MODE)) else { return };
    log.note("write", write(&fd, &[b'a'; 64 << 10]));
    for (what, mode, offset, length) in [
        ("allocate", FallocateFlags::empty(), 0, 128 << 10),
        ("keep size", FallocateFlags::KEEP_SIZE, 128 << 10, 64 << 10),
        ("punch", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 16 << 10, 16 << 10),
        ("punch alone", FallocateFlags::PUNCH_HOLE, 16 << 10, 16 << 10),
        ("zero", FallocateFlags::ZERO_RANGE, 40 << 10, 4 << 10),
        ("nothing", FallocateFlags::empty(), 0, 0),
    ] {
        log.note(what, fallocate(&fd, mode, offset, length));
        log.note("size", fstat(&fd).map(|stat| stat.st_size));
    }
    for from in [0, 20 << 10, 200 << 10] {
        log.note("hole", seek(&fd, SeekFrom::Hole(from)));
        log.note("data", seek(&fd, SeekFrom::Data(from)));
    }
    log.note("end", seek(&fd, SeekFrom::End(-5)));
    log.note("before the start", seek(&fd, SeekFrom::Current(-(1 << 40))));
    log.note("in the hole", text(&fd, (16 << 10) - 2, 4));
}

fn copy(dir: &Path, log: &mut Log) {
    let one = open(dir.join("one"), RW, MODE).unwrap();
    let two = open(dir.join("two"), RW, MODE).unwrap();
    log.note("write", write(&one, &[b'q'; 100_000]));
    let (mut from, mut to) = (10, 20);
    log.note("copy", copy_file_range(&one, Some(&mut from), &two, Some(&mut to), 50_000));
    log.value("offsets", (from, to));
    log.note("size", fstat(&two).map(|stat| stat.st_size));
    log.note("onto itself", copy_file_range(&one, Some(&mut 0), &one, Some(&mut 5), 100));
    log.note("past the end", copy_file_range(&one, Some(&mut 100_000), &two, Some(&mut 0), 10));
    let reader = open(dir.join("two"), OFlags::RDONLY, MODE).unwrap();
    log.note("into a reader", copy_file_range(&one, None, &reader, None, 10));
}

fn unnamed(dir: &Path, log: &mut Log) {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let Some(fd) = log.opened("O_TMPFILE", open(dir, flags, MODE)) else { return };
    log.note("write", write(&fd, b"unnamed"));
    log.note("links", fstat(&fd).map(|stat| stat.st_nlink));
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    log.note("name it", linkat(CWD, path, CWD, dir.join("named"), AtFlags::SYMLINK_FOLLOW));
    log.note("links", fstat(&fd).map(|stat| stat.st_nlink));
    log.note("read", stat(dir.join("named")).map(|stat| stat.st_size));
    let sealed = open(dir, flags | OFlags::EXCL, MODE);
    if let Some(fd) = log.opened("O_TMPFILE O_EXCL", sealed) {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        log.note("not to be named", linkat(CWD, path, CWD, dir.join("x"), AtFlags::SYMLINK_FOLLOW));
    }
}

fn removed_while_open(dir: &Path, log: &mut Log) {
    let path = dir.join("f");
    let fd = open(&path, RW, MODE).unwrap();
    log.note("write", write(&fd, b"still here"));
    log.note("unlink", unlink(&path));
    log.note("links", fstat(&fd).map(|stat| stat.st_nlink));
    log.note("read", text(&fd, 0, 20));
    log.note("write", pwrite(&fd, b"STILL", 0));
    log.note("truncate", ftruncate(&fd, 7));
    log.note("read", text(&fd, 0, 20));
    log.note("chmod", rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o600)));
    log.note("mode", fstat(&fd).map(|stat| stat.st_mode));
    log.note("gone", stat(&path).map(|_| ()));
}

fn locks(dir: &Path, log: &mut Log) {
    let path = dir.join("f");
    let (one, two) = (open(&path, RW, MODE).unwrap(), open(&path, RW, MODE).unwrap());
    use rustix::fs::flock;
    log.note("exclusive", flock(&one, FlockOperation::LockExclusive));
    log.note("taken", flock(&two, FlockOperation::NonBlockingLockShared));
    log.note("shared", flock(&one, FlockOperation::LockShared));
    log.note("shared too", flock(&two, FlockOperation::NonBlockingLockShared));
    log.note("not alone", flock(&two, FlockOperation::NonBlockingLockExclusive));
    drop(one);
    // A child that another test forks right now has a copy of `one` until it executes its program,
    // so this may have to wait, on either side.
    log.note("alone", flock(&two, FlockOperation::LockExclusive));
    use rustix::fs::fcntl_lock;
    log.note("record", fcntl_lock(&two, FlockOperation::NonBlockingLockExclusive));
    log.note("unlock", fcntl_lock(&two, FlockOperation::Unlock));
    let reader = open(&path, OFlags::RDONLY, MODE).unwrap();
    log.note(
        "write lock of a reader",
        fcntl_lock(&reader, FlockOperation::NonBlockingLockExclusive),
    );
}

fn far_offsets(dir: &Path, log: &mut Log) {
    let Some(fd) = log.opened("create", open(dir.join("f"), RW, MODE)) else { return };
    log.note("1 GiB", pwrite(&fd, b"far", 1 << 30));
    log.note("size", fstat(&fd).map(|stat| stat.st_size));
    log.note("read", text(&fd, (1 << 30) - 2, 10));
    log.note("8 EiB", pwrite(&fd, b"too far", i64::MAX.cast_unsigned() - 1));
    log.note("negative", pread(&fd, &mut [0_u8; 4][..], u64::MAX).map(|_| ()));
    log.note("shorten", ftruncate(&fd, 1));
}

fn sync(dir: &Path, log: &mut Log) {
    let fd = open(dir.join("f"), RW, MODE).unwrap();
    log.note("write", write(&fd, b"x"));
    log.note("fsync", fsync(&fd));
    log.note("fdatasync", fdatasync(&fd));
    let dir = open(dir, OFlags::RDONLY | OFlags::DIRECTORY, MODE).unwrap();
    log.note("fsync of a directory", fsync(&dir));
    log.note("read a directory", read(&dir, &mut [0_u8; 4][..]).map(|_| ()));
}

fn execute(dir: &Path, log: &mut Log) {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join("sleep");
    // By another process: a child that another test forks at this moment would hold it open.
    let copied = std::process::Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    let run = |name: &str, argument: &str| {
        let child = std::process::Command::new(dir.join(name)).arg(argument).spawn();
        child.map_err(|error| Errno::from_io_error(&error).unwrap())
    };
    if let Some(mut child) = log.opened("run", run("sleep", "60")) {
        log.opened("write to what runs", open(&program, OFlags::WRONLY, MODE));
        child.kill().unwrap();
        child.wait().unwrap();
        log.opened("write afterwards", open(&program, OFlags::WRONLY, MODE));
    }
    let write = "printf '#!/bin/sh\nexit 7\n' >script";
    let written = std::process::Command::new("sh").args(["-c", write]).current_dir(dir).status();
    assert!(written.unwrap().success());
    log.opened("not executable", run("script", ""));
    std::fs::set_permissions(dir.join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    if let Some(mut child) = log.opened("script", run("script", "")) {
        log.value("status", child.wait().unwrap().code());
    }
}
