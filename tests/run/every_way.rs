//! The known ways past a path policy, each tried by one program in each way to use a view: as CMD of
//! `run` of root and of a user, and in a view made by `mount`, by root and by a user. The numbers are
//! those of the tables in docs/policy.md and docs/threat-model.md; 10, 24, 25, 28 and 29 are no
//! attempts that a program in a view can make, and have tests of their own.
#![expect(unsafe_code, reason = "system calls that no library offers, as an attacker makes them")]

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::project::{Project, SECRET, all, can_mount, text};

const POLICY: &str = r#"
    [[rule]]
    path = ["secret", "**/*.pem", "vault"]
    action = "deny"
    [[rule]]
    path = "hidden"
    action = "hide"
    [[rule]]
    path = "docs"
    action = "read-only"
    [[rule]]
    path = "masked"
    action = "redact"
"#;
/// What `masked` holds, and nobody may see.
const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
const SECRETS: [&str; 5] = ["secret", "keys/a.pem", "vault/inner/key", "hidden/x", "alias"];

/// A project with what the policy keeps, and further names of it from before the start.
fn project() -> Project {
    let project = Project::new();
    fs::remove_dir_all(project.path("dir")).unwrap();
    for (path, text) in [
        ("secret", SECRET),
        ("keys/a.pem", SECRET),
        ("vault/inner/key", SECRET),
        ("hidden/x", SECRET),
        ("docs/page", "page"),
        ("masked", &format!("{}\ntoken = {TOKEN}\n", "plain ".repeat(40))),
        ("open/file", "public"),
        ("open/inner/key", "public"),
    ] {
        let path = project.path("dir").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::hard_link(project.path("dir/secret"), project.path("dir/alias")).unwrap();
    fs::write(project.path("policy.toml"), POLICY).unwrap();
    project
}

/// Not a test: the program that makes the attempts, in the working directory.
#[test]
#[ignore = "a program for the other tests"]
fn attempt() {
    if std::env::var_os("ATTEMPT").is_none_or(|what| what != "every way") {
        return;
    }
    swapped_links();
    names();
    handles();
    changes();
    special_files();
    unnamed_and_strange_names();
    masked();
    namespaces();
    for path in SECRETS {
        say(0, "the secret at its own place", File::open(path).map(|file| told(&file)));
    }
}

/// Prints how attempt `number` ended: an error number, or 0 if it went through.
fn say<T>(number: u32, what: &str, result: Result<T, impl Into<std::io::Error>>) {
    let error = result.err().map_or(0, |error| error.into().raw_os_error().unwrap_or(-1));
    println!("> {number} {what}: {error}");
}

/// Prints whether `file` holds what is kept.
fn told(file: &File) {
    let mut bytes = vec![0; 4096];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    look_at(&bytes[..read]);
}

fn look_at(bytes: &[u8]) {
    let holds = |part: &str| bytes.windows(part.len()).any(|window| window == part.as_bytes());
    if holds(SECRET) || holds(&TOKEN[4..]) {
        println!("> told");
    }
}

fn open(path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
}

/// What is read of `path` is looked at.
fn read(number: u32, what: &str, path: impl AsRef<Path>) {
    say(number, what, File::open(path).map(|file| told(&file)));
}

/// 1 to 3: symbolic links.
fn swapped_links() {
    let swap = || {
        for target in ["file", "../secret"].iter().cycle().take(200) {
            let _ = symlink(target, "open/fresh");
            let _ = fs::rename("open/fresh", "open/link");
        }
    };
    std::thread::scope(|scope| {
        let swapping = scope.spawn(swap);
        while !swapping.is_finished() {
            let _ = File::open("open/link").map(|file| told(&file));
        }
    });
    say(1, "a link swapped meanwhile", fs::remove_file("open/link").and_then(|()| refused()));
    let here = std::env::current_dir().unwrap();
    let absolute = here.join("secret");
    for target in [absolute.to_str().unwrap(), "../open/../secret", "/proc/self/cwd/secret"] {
        let _ = fs::remove_file("open/way");
        symlink(target, "open/way").unwrap();
        read(3, "a link that leads around", "open/way");
    }
    read(3, "dots and slashes", "open/..//./secret");
}

/// What an attempt that only prints what it was told ends with.
fn refused() -> std::io::Result<()> {
    Err(Errno::ACCESS.into())
}

/// 2, 4 to 7: other names.
fn names() {
    let exchange =
        |a: &str, b: &str| rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
    for (a, b) in [("vault", "open"), ("vault/inner", "open/inner"), ("hidden", "open")] {
        say(2, "exchange", exchange(a, b));
        say(2, "exchange, the other way", exchange(b, a));
    }
    for secret in SECRETS {
        say(4, "a hard link", fs::hard_link(secret, "open/got"));
        say(5, "a rename", fs::rename(secret, "open/got"));
        say(5, "a rename over it", fs::rename("open/file", secret));
    }
    say(4, "a hard link of what is read-only", fs::hard_link("docs/page", "open/page"));
    for dir in ["vault", "vault/inner", "hidden", "docs"] {
        say(6, "a rename of a directory above", fs::rename(dir, "open/got"));
    }
    read(7, "a name from before", "alias");
}

/// 8, 9, 13, 19: descriptors that allow little.
fn handles() {
    let again = |fd: &OwnedFd, flags| open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags);
    let page = open("docs/page", OFlags::RDONLY).unwrap();
    say(8, "opened again to write", again(&page, OFlags::RDWR));
    say(8, "opened again to truncate", again(&page, OFlags::RDONLY | OFlags::TRUNC));
    let path = open("secret", OFlags::PATH).unwrap();
    say(9, "O_PATH, then opened", again(&path, OFlags::RDONLY).map(|fd| told(&fd.into())));
    let fd_path = format!("/proc/self/fd/{}", path.as_raw_fd());
    let link = rustix::fs::linkat(CWD, &fd_path, CWD, "open/got", AtFlags::SYMLINK_FOLLOW);
    say(9, "O_PATH, then linked", link);
    let out = open("open/out", OFlags::CREATE | OFlags::RDWR).unwrap();
    say(13, "copy_file_range", rustix::fs::copy_file_range(&path, None, &out, None, 10));
    // SAFETY: both descriptors are open, and no offset is asked for.
    let sent =
        unsafe { libc::sendfile(out.as_raw_fd(), path.as_raw_fd(), std::ptr::null_mut(), 10) };
    say(13, "sendfile", outcome(sent as i64));
    say(13, "a mapping", map(&path, libc::PROT_READ, libc::MAP_PRIVATE));
    say(13, "executed", Command::new("./secret").status());
    say(13, "an attribute", rustix::fs::getxattr("secret", "user.x", &mut [0; 8][..]));
    say(19, "a file handle", by_handle("secret").map(|fd| told(&fd.into())));
}

fn outcome(result: i64) -> std::io::Result<()> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Maps a page of `file`, looks at it where it can be read, and writes to it where that is asked.
fn map(file: &OwnedFd, protection: i32, flags: i32) -> std::io::Result<()> {
    // SAFETY: no address is asked for, so that nothing that exists is replaced.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: 280 bytes of the one page that was mapped, of a file that is at least as long.
    look_at(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), 280) });
    Ok(())
}

fn by_handle(path: &str) -> std::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let path = CString::new(path).unwrap();
    // `struct file_handle`: the size, the type, and that many bytes.
    let mut handle = [0_u32; 34];
    handle[0] = 128;
    let mut mount = 0_i32;
    // SAFETY: `handle` has room for the 128 bytes that it says, `mount` for a number.
    let found = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount,
            0,
        )
    };
    outcome(found)?;
    let dir = File::open(".")?;
    // SAFETY: `handle` is as the call before it filled it.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, dir.as_raw_fd(), handle.as_ptr(), libc::O_RDONLY)
    };
    outcome(fd)?;
    // SAFETY: the call returned a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) })
}

/// 11, 12, 16, 17, 26: changes.
fn changes() {
    let page = "docs/page";
    let reader = open(page, OFlags::RDONLY).unwrap();
    for flags in [OFlags::RDWR, OFlags::WRONLY | OFlags::APPEND, OFlags::RDWR | OFlags::DIRECT] {
        say(11, "opened to write", open(page, flags));
        say(26, "opened to write beside a reader", open(page, flags));
    }
    say(11, "a write", rustix::io::write(&reader, b"x"));
    say(11, "a shared mapping", map(&reader, libc::PROT_WRITE, libc::MAP_SHARED));
    say(12, "O_TRUNC", open(page, OFlags::RDONLY | OFlags::TRUNC));
    say(12, "ftruncate", rustix::fs::ftruncate(&reader, 0));
    say(12, "fallocate", rustix::fs::fallocate(&reader, FallocateFlags::empty(), 0, 10));
    say(12, "chmod", fs::set_permissions(page, fs::Permissions::from_mode(0o777)));
    say(12, "unlink", fs::remove_file(page));
    say(12, "a new file", File::create("docs/new"));
    let value = [1_u8, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let set = |name: &str| rustix::fs::setxattr(page, name, &value, XattrFlags::empty());
    say(16, "security.capability", set("security.capability"));
    say(16, "trusted.x", set("trusted.x"));
    fs::write("open/set-id", "x").unwrap();
    let _ = fs::set_permissions("open/set-id", fs::Permissions::from_mode(0o6755));
    let _ = File::options().write(true).open("open/set-id").unwrap().write_at(b"y", 0);
    let kept = fs::metadata("open/set-id").unwrap().mode() & 0o6000;
    say(17, "set-id bits after a write", if kept == 0 { refused() } else { Ok(()) });
    say(26, "a new secret", File::create("open/new.pem"));
}

/// 14, 15: FIFOs and devices. A node that can be made must not open.
fn special_files() {
    let mode = Mode::from_raw_mode(0o666);
    say(
        14,
        "a FIFO at a denied place",
        rustix::fs::mknodat(CWD, "open/a.pem", FileType::Fifo, mode, 0),
    );
    let null = rustix::fs::makedev(1, 3);
    for (number, kind) in [(14, FileType::CharacterDevice), (15, FileType::BlockDevice)] {
        let name = format!("open/node {number}");
        let made = rustix::fs::mknodat(CWD, &name, kind, mode, null);
        say(number, "a device node", made.and_then(|()| open(&name, OFlags::RDONLY)));
    }
}

/// 18, 20, 21: names.
fn unnamed_and_strange_names() {
    let file = open("open", OFlags::TMPFILE | OFlags::RDWR).unwrap();
    for name in ["keys/new.pem", "docs/new", "vault/new"] {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let named = rustix::fs::linkat(CWD, path, CWD, name, AtFlags::SYMLINK_FOLLOW);
        say(18, "a name for an unnamed file", named);
    }
    for name in
        [&b"open/\xff.pem"[..], b"open/new\nline.pem", b"open/.pem", "open/é.pem".as_bytes()]
    {
        say(20, "a strange name", File::create(Path::new(OsStr::from_bytes(name))));
    }
    say(21, "a name too long", File::create(format!("open/{}.pem", "x".repeat(252))));
    let dir = "d".repeat(250);
    let mut here = open("open", OFlags::DIRECTORY).unwrap();
    for _ in 0..20 {
        rustix::fs::mkdirat(&here, &dir, Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, &dir, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let made = rustix::fs::openat(&here, "deep.pem", OFlags::CREATE, Mode::from_raw_mode(0o600));
    say(21, "a secret deeper than PATH_MAX", made);
}

/// 22, 23: what is masked.
fn masked() {
    let file = File::open("masked").unwrap();
    let size = usize::try_from(file.metadata().unwrap().len()).unwrap();
    for (from, length) in (0..size).flat_map(|from| [(from, 7), (from, 64)]) {
        let mut bytes = vec![0; length];
        let read = file.read_at(&mut bytes, from as u64).unwrap();
        look_at(&bytes[..read]);
    }
    let pieces: Vec<u8> = (0..size)
        .flat_map(|at| {
            let mut byte = [0];
            file.read_at(&mut byte, at as u64).unwrap();
            byte
        })
        .collect();
    look_at(&pieces);
    say(23, "read in pieces", refused());
    let file = OwnedFd::from(file);
    let _ = map(&file, libc::PROT_READ, libc::MAP_SHARED);
    say(22, "a mapping", refused());
    say(22, "executed", Command::new("./masked").stdout(Stdio::null()).status());
    say(22, "opened to write", open("masked", OFlags::RDWR));
}

/// 27, 30: namespaces of the program's own, and mounts in them.
fn namespaces() {
    let script = "cat secret vault/inner/key hidden/x alias; cat keys/a.pem
        mount --bind vault open/inner; cat open/inner/inner/key
        mount --bind . open; cat open/secret open/hidden/x
        mount -t overlay -o lowerdir=vault:open o open; cat open/inner/key
        mount -o remount,bind,rw docs; umount $PWD; umount -l $PWD; cd $PWD; cat secret hidden/x
        echo x >docs/page; true";
    for (number, arguments) in [(27, ["-U", "-r"]), (30, ["-Ur", "-m"])] {
        let mut unshare = Command::new("unshare");
        let output = unshare.args(arguments).args(["sh", "-c", script]).output().unwrap();
        look_at(&output.stdout);
        say(number, "in namespaces of its own", refused());
    }
}

/// A way to use a view: its name, and the commands that run `./attempts ...` in it, in the
/// directory that everything lies in.
const WAYS: [(&str, &str); 4] = [
    ("run of root", "./tollgate run --sandbox strict --policy policy.toml --chdir dir dir -- $A"),
    (
        "run of a user",
        "chown -Rh 4321:4321 dir; mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
         setpriv --reuid 4321 --regid 4321 --clear-groups \
             ./tollgate run --sandbox strict --policy policy.toml --chdir dir dir -- $A",
    ),
    ("mount, root", "$MOUNT; cd mnt; $A"),
    (
        "mount, a user",
        "chown -Rh 4321:4321 dir; $MOUNT; cd mnt
         setpriv --reuid 4321 --regid 4321 --clear-groups $A",
    ),
];

/// Makes all attempts in one way, and returns what was printed; `None` where users may have no user
/// namespaces.
fn try_in(project: &Project, commands: &str) -> Option<String> {
    let script = format!(
        "cp $T tollgate; cp {} attempts; chmod 755 . tollgate attempts mnt
         A=\"$PWD/attempts --ignored --exact every_way::attempt --nocapture\"
         MOUNT='./tollgate mount --daemon --sandbox strict --policy policy.toml dir mnt'
         export ATTEMPT='every way' TMPDIR=/tmp; H=$PWD
         trap 'cd $H; ./tollgate umount --lazy mnt 2>/dev/null || true' EXIT
         {commands}",
        std::env::current_exe().unwrap().display()
    );
    let output = project.in_mount_namespace(&script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return None;
    }
    assert!(output.status.success(), "{all}");
    Some(text(&output.stdout))
}

#[test]
fn every_known_attempt_fails_in_every_way_to_use_a_view() {
    if !can_mount() {
        return;
    }
    for (way, commands) in WAYS {
        let project = project();
        let Some(printed) = try_in(&project, commands) else { continue };
        let lines: Vec<_> = printed.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        assert!(!lines.contains(&"told"), "{way}: {printed}");
        let through: Vec<_> = lines.iter().filter(|line| line.ends_with(": 0")).collect();
        assert!(through.is_empty(), "{way}: {through:#?}\n{printed}");
        let made: BTreeSet<u32> =
            lines.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
        let others = [10, 24, 25, 28, 29];
        let all = (0..=30).filter(|number| !others.contains(number)).collect();
        assert_eq!(made, all, "{way}: attempts that were made");
        assert_as_before(way, &project.path("dir"));
    }
}

/// Beneath, what is kept is where it was and as it was, and nothing else has its bytes.
fn assert_as_before(way: &str, lower: &Path) {
    for path in SECRETS {
        assert_eq!(fs::read_to_string(lower.join(path)).unwrap(), SECRET, "{way}: {path}");
    }
    assert_eq!(fs::read_to_string(lower.join("docs/page")).unwrap(), "page", "{way}");
    assert_eq!(fs::read_dir(lower.join("docs")).unwrap().count(), 1, "{way}");
    let mut dirs = vec![lower.join("open")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            // The deep ones are too deep for a path.
            if kind.is_dir() && entry.file_name().len() < 250 {
                dirs.push(entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).unwrap();
                assert_ne!(bytes, SECRET.as_bytes(), "{way}: {}", entry.path().display());
            }
        }
    }
}
