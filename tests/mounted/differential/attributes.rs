//! Modes, owners, times, extended attributes, access control lists.

use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    XattrFlags, access, chmod, chown, getxattr, listxattr, lsetxattr, mkdir, open, removexattr,
    setxattr, stat, utimensat,
};

use super::{Log, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("modes", modes),
    ("owners", owners),
    ("times", times),
    ("set-id bits", set_id_bits),
    ("inheritance", inheritance),
    ("capabilities", capabilities),
    ("extended attributes", extended),
    ("access control lists", lists),
    ("access", accesses),
];

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn modes(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    std::fs::write(&file, "x").unwrap();
    for bits in [0o600, 0o000, 0o7777, 0o1777, 0o644] {
        log.note("chmod", chmod(&file, mode(bits)));
        log.note("mode", stat(&file).map(|stat| stat.st_mode));
    }
    std::os::unix::fs::symlink("f", dir.join("link")).unwrap();
    log.note("through a link", chmod(dir.join("link"), mode(0o640)));
    log.note("mode", stat(&file).map(|stat| stat.st_mode));
    log.note("absent", chmod(dir.join("absent"), mode(0o640)));
    log.note("directory", chmod(dir, mode(0o711)));
}

fn owners(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    std::fs::write(&file, "x").unwrap();
    let id = |raw| (Some(Uid::from_raw(raw)), Some(Gid::from_raw(raw)));
    let ids = [(None, None), id(0), id(1234), (Some(Uid::from_raw(77)), None), (None, id(88).1)];
    for (uid, gid) in ids {
        log.note("chown", chown(&file, uid, gid));
        log.note("owner", stat(&file).map(|stat| (stat.st_uid, stat.st_gid)));
    }
    std::os::unix::fs::symlink("f", dir.join("link")).unwrap();
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    log.note("of a link", rustix::fs::chownat(CWD, dir.join("link"), id(9).0, id(9).1, nofollow));
}

fn times(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    std::fs::write(&file, "x").unwrap();
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    for (access, modified) in [
        (at(1_000_000_000, 123_456_789), at(1_100_000_000, 987_654_321)),
        (at(0, UTIME_OMIT), at(1_200_000_000, 0)),
        (at(1_300_000_000, 5), at(0, UTIME_OMIT)),
        (at(-1, 0), at(0, 0)),
        (at(1, 2_000_000_000), at(0, 0)),
    ] {
        let times = Timestamps { last_access: access, last_modification: modified };
        log.note("set", utimensat(CWD, &file, &times, AtFlags::empty()));
        let both = stat(&file).map(|s| (s.st_atime, s.st_atime_nsec, s.st_mtime, s.st_mtime_nsec));
        log.note("times", both);
    }
    let now = Timestamps { last_access: at(0, UTIME_NOW), last_modification: at(0, UTIME_NOW) };
    log.note("now", utimensat(CWD, &file, &now, AtFlags::empty()));
    log.note("recent", stat(&file).map(|stat| stat.st_mtime > 1_700_000_000));
    let before = stat(&file).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(&file, "y").unwrap();
    let after = stat(&file).unwrap();
    let later = |now: (i64, u64), then: (i64, u64)| now > then;
    let mtime = |s: &rustix::fs::Stat| (s.st_mtime, s.st_mtime_nsec);
    let ctime = |s: &rustix::fs::Stat| (s.st_ctime, s.st_ctime_nsec);
    log.value("mtime after a write", later(mtime(&after), mtime(&before)));
    log.value("ctime after a write", later(ctime(&after), ctime(&before)));
    std::thread::sleep(std::time::Duration::from_millis(20));
    chmod(&file, mode(0o600)).unwrap();
    let last = stat(&file).unwrap();
    log.value("mtime after chmod", later(mtime(&last), mtime(&after)));
    log.value("ctime after chmod", later(ctime(&last), ctime(&after)));
}

/// What a write, a truncation and a change of owner leave of the bits.
fn set_id_bits(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    let fresh = |bits: u32| {
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, "0123456789").unwrap();
        chmod(&file, mode(bits)).unwrap();
    };
    for bits in [0o6755, 0o4755, 0o2755, 0o2745] {
        fresh(bits);
        let fd = open(&file, OFlags::RDWR, mode(0)).unwrap();
        log.note("write", rustix::io::write(&fd, b"x"));
        log.note("mode after write", stat(&file).map(|stat| stat.st_mode));
        fresh(bits);
        let fd = open(&file, OFlags::RDWR, mode(0)).unwrap();
        log.note("truncate", rustix::fs::ftruncate(&fd, 3));
        log.note("mode after truncate", stat(&file).map(|stat| stat.st_mode));
        fresh(bits);
        log.opened("O_TRUNC", open(&file, OFlags::WRONLY | OFlags::TRUNC, mode(0)));
        log.note("mode after O_TRUNC", stat(&file).map(|stat| stat.st_mode));
        fresh(bits);
        let fd = open(&file, OFlags::RDWR, mode(0)).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        log.note("fallocate", rustix::fs::fallocate(&fd, flags, 0, 4096));
        log.note("mode after fallocate", stat(&file).map(|stat| stat.st_mode));
        fresh(bits);
        log.note("chown", chown(&file, None, Some(Gid::from_raw(stat(&file).unwrap().st_gid))));
        log.note("mode after chown", stat(&file).map(|stat| stat.st_mode));
    }
}

/// File capabilities go at the first change of the data.
fn capabilities(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    let name = "security.capability";
    // Version 2, CAP_NET_RAW permitted.
    let value = [0x0200_0000_u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    type Change = fn(&Path) -> Result<(), rustix::io::Errno>;
    let changes: [(&str, Change); 3] = [
        ("write", |path| rustix::io::write(open(path, OFlags::WRONLY, mode(0))?, b"x").map(|_| ())),
        ("truncate", |path| rustix::fs::ftruncate(open(path, OFlags::WRONLY, mode(0))?, 3)),
        ("chown", |path| chown(path, None, Some(Gid::from_raw(stat(path)?.st_gid)))),
    ];
    for (what, change) in changes {
        std::fs::write(&file, "0123456789").unwrap();
        log.note("set", setxattr(&file, name, &value, XattrFlags::empty()));
        log.note("length", rustix::fs::getxattr_query(&file, name));
        log.note(what, change(&file));
        log.note("length afterwards", rustix::fs::getxattr_query(&file, name));
    }
}

fn inheritance(dir: &Path, log: &mut Log) {
    let shared = dir.join("shared");
    mkdir(&shared, mode(0o755)).unwrap();
    // Another group where that may be given, and its bit.
    let _ = chown(&shared, None, Some(Gid::from_raw(4321)));
    log.note("setgid", chmod(&shared, mode(0o2775)));
    std::fs::write(shared.join("file"), "").unwrap();
    log.note("mkdir", mkdir(shared.join("dir"), mode(0o755)));
    log.note(
        "O_TMPFILE",
        open(&shared, OFlags::TMPFILE | OFlags::RDWR, mode(0o644)).map(|fd| {
            let stat = rustix::fs::fstat(&fd).unwrap();
            (stat.st_mode, stat.st_gid)
        }),
    );
    for name in ["file", "dir"] {
        log.note(name, stat(shared.join(name)).map(|stat| (stat.st_mode, stat.st_gid)));
    }
    log.opened("setgid asked for", open(shared.join("bits"), OFlags::CREATE, mode(0o6777)));
    log.note("bits", stat(shared.join("bits")).map(|stat| stat.st_mode));
}

fn extended(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    std::fs::write(&file, "x").unwrap();
    std::os::unix::fs::symlink("f", dir.join("link")).unwrap();
    let set = |name: &str, value: &[u8], flags| setxattr(&file, name, value, flags);
    let none = XattrFlags::empty();
    log.note("set", set("user.one", b"1", none));
    log.note("create again", set("user.one", b"2", XattrFlags::CREATE));
    log.note("replace absent", set("user.two", b"2", XattrFlags::REPLACE));
    log.note("replace", set("user.one", b"new value", XattrFlags::REPLACE));
    log.note("empty", set("user.empty", b"", none));
    let mut buffer = [0_u8; 64];
    log.note("get", getxattr(&file, "user.one", &mut buffer[..]));
    log.value("value", &buffer[..9]);
    log.note("get empty", getxattr(&file, "user.empty", &mut buffer[..]));
    log.note("too small", getxattr(&file, "user.one", &mut buffer[..3]));
    log.note("length", rustix::fs::getxattr_query(&file, "user.one"));
    log.note("absent", getxattr(&file, "user.absent", &mut buffer[..]));
    log.note("names", rustix::fs::listxattr_query(&file));
    log.note("names, too small", listxattr(&file, &mut buffer[..5]));
    log.note("3000 bytes", set("user.big", &[7; 3000], none));
    log.note("too big", set("user.huge", &[7; 70_000], none));
    log.note("of a link", lsetxattr(dir.join("link"), "user.x", b"1", none));
    log.note("trusted", set("trusted.x", b"1", none));
    log.note("no namespace", set("plain", b"1", none));
    log.note("unknown namespace", set("other.x", b"1", none));
    log.note("long name", set(&format!("user.{}", "n".repeat(250)), b"1", none));
    log.note("longer name", set(&format!("user.{}", "n".repeat(251)), b"1", none));
    log.note("directory", setxattr(dir, "user.dir", b"1", none));
    log.note("remove", removexattr(&file, "user.one"));
    log.note("remove again", removexattr(&file, "user.one"));
}

/// An access control list as the kernel keeps it: version 2, then tag, permissions, id for each
/// entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn lists(dir: &Path, log: &mut Log) {
    const NOBODY: u32 = u32::MAX;
    let (owner, user, group, mask, other) = (0x01, 0x02, 0x04, 0x10, 0x20);
    let acl = list(&[
        (owner, 7, NOBODY),
        (user, 5, 55),
        (group, 4, NOBODY),
        (mask, 5, NOBODY),
        (other, 0, NOBODY),
    ]);
    let none = XattrFlags::empty();
    std::fs::write(dir.join("f"), "x").unwrap();
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    log.note("file", setxattr(dir.join("f"), access, &acl, none));
    log.note("mode", stat(dir.join("f")).map(|stat| stat.st_mode));
    log.note("default of a file", setxattr(dir.join("f"), default, &acl, none));
    log.note("chmod", chmod(dir.join("f"), mode(0o770)));
    let mut buffer = [0_u8; 128];
    let length = log.note("read", getxattr(dir.join("f"), access, &mut buffer[..]));
    log.value("list", &buffer[..length.unwrap_or(0)]);
    log.note("malformed", setxattr(dir.join("f"), access, b"\x02\0\0\0zz", none));
    mkdir(dir.join("d"), mode(0o755)).unwrap();
    log.note("default", setxattr(dir.join("d"), default, &acl, none));
    std::fs::write(dir.join("d/f"), "x").unwrap();
    log.note("mkdir", mkdir(dir.join("d/sub"), mode(0o777)));
    for name in ["d/f", "d/sub"] {
        log.note(name, stat(dir.join(name)).map(|stat| stat.st_mode));
    }
    log.note("remove", removexattr(dir.join("f"), access));
    log.note("mode", stat(dir.join("f")).map(|stat| stat.st_mode));
    let foreign = dir.join(super::FOREIGN_GROUP);
    for attribute in [default, access] {
        log.note(attribute, setxattr(&foreign, attribute, &acl, none));
        log.note("mode", stat(&foreign).map(|stat| stat.st_mode));
    }
}

fn accesses(dir: &Path, log: &mut Log) {
    let file = dir.join("f");
    std::fs::write(&file, "x").unwrap();
    for bits in [0o000, 0o400, 0o200, 0o100, 0o755] {
        chmod(&file, mode(bits)).unwrap();
        for kind in [Access::EXISTS, Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK] {
            log.note(&format!("{bits:o} {kind:?}"), access(&file, kind));
        }
        log.opened("read", open(&file, OFlags::RDONLY, mode(0)));
        log.opened("write", open(&file, OFlags::WRONLY, mode(0)));
    }
    mkdir(dir.join("d"), mode(0o755)).unwrap();
    std::fs::write(dir.join("d/f"), "x").unwrap();
    for bits in [0o000, 0o400, 0o100, 0o300] {
        chmod(dir.join("d"), mode(bits)).unwrap();
        log.note("stat inside", stat(dir.join("d/f")).map(|stat| stat.st_size));
        log.value("list", std::fs::read_dir(dir.join("d")).is_ok());
        log.opened("make", open(dir.join("d/new"), OFlags::CREATE, mode(0o600)));
    }
    chmod(dir.join("d"), mode(0o755)).unwrap();
}
