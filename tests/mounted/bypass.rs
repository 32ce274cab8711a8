//! Ways past a path policy, each an attempt that must fail. The numbers are those of the table in
//! `docs/policy.md`.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, open};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

const SECRET: &str = "the secret";
const POLICY: &str = r#"
    [[rule]]
    name = "secrets"
    path = ["secret", "**/*.pem", "vault"]
    action = "deny"

    [[rule]]
    name = "docs"
    path = "docs"
    action = "read-only"

    [[rule]]
    name = "hidden"
    path = "hidden"
    action = "hide"
"#;

fn guarded() -> Option<View> {
    can_mount().then(|| {
        View::with(
            POLICY,
            &[
                ("secret", SECRET),
                ("keys/a.pem", SECRET),
                ("vault/inner/key", SECRET),
                ("docs/page", "page"),
                ("hidden/x", SECRET),
                ("open/file", "public"),
            ],
        )
    })
}

const SECRETS: [&str; 4] = ["secret", "keys/a.pem", "vault/inner/key", "hidden/x"];

fn refusal<T>(result: Result<T, Errno>) -> Option<Errno> {
    result.err()
}

fn opens(path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, Errno> {
    open(path.as_ref(), flags, Mode::from_raw_mode(0o600))
}

/// Nothing below the view has the secret's bytes under a name that can be read.
#[track_caller]
fn assert_still_secret(view: &View) {
    for path in SECRETS {
        assert!(fs::read(view.at(path)).is_err(), "{path} can be read");
        assert_eq!(fs::read_to_string(view.below(path)).unwrap(), SECRET, "{path} was changed");
    }
    let mut dirs = vec![view.root().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().map(Result::unwrap) {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => {
                    let bytes = fs::read(entry.path()).unwrap_or_default();
                    assert_ne!(bytes, SECRET.as_bytes(), "{} tells it", entry.path().display());
                }
                _ => {}
            }
        }
    }
}

#[test]
fn plain_access_is_refused() {
    let Some(view) = guarded() else { return };
    for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::TRUNC] {
        assert_eq!(refusal(opens(view.at("secret"), flags)), Some(Errno::ACCESS), "{flags:?}");
        assert_eq!(refusal(opens(view.at("hidden/x"), flags)), Some(Errno::NOENT), "{flags:?}");
    }
    assert_eq!(refusal(rustix::fs::stat(view.at("hidden"))), Some(Errno::NOENT));
    assert!(rustix::fs::stat(view.at("secret")).is_ok());
    assert!(fs::read_dir(view.root()).unwrap().all(|entry| entry.unwrap().file_name() != "hidden"));
    assert_still_secret(&view);
}

/// 1: a symbolic link that changes between an allowed and a denied target.
#[test]
fn a_symlink_swapped_meanwhile() {
    let Some(view) = guarded() else { return };
    let link = view.at("open/link");
    let stop = Instant::now() + Duration::from_millis(500);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for target in ["file", "../secret", "../keys/a.pem"].iter().cycle() {
                let fresh = view.at("open/fresh");
                std::os::unix::fs::symlink(target, &fresh).unwrap();
                fs::rename(&fresh, &link).unwrap();
                if Instant::now() > stop {
                    break;
                }
            }
        });
        while Instant::now() < stop {
            if let Ok(text) = fs::read_to_string(&link) {
                assert_eq!(text, "public");
            }
        }
    });
    assert_still_secret(&view);
}

/// 2: a directory that changes places with a denied one.
#[test]
fn directories_exchanged_meanwhile() {
    let Some(view) = guarded() else { return };
    fs::create_dir(view.at("open/inner")).unwrap();
    fs::write(view.at("open/inner/key"), "public").unwrap();
    let swap = |a: &str, b: &str| {
        rustix::fs::renameat_with(CWD, view.at(a), CWD, view.at(b), RenameFlags::EXCHANGE)
    };
    assert!(swap("vault", "open").is_err());
    assert!(swap("vault/inner", "open/inner").is_err());
    assert!(swap("open/inner", "vault/inner").is_err());
    assert!(swap("hidden", "open").is_err());
    assert_eq!(fs::read_to_string(view.at("open/inner/key")).unwrap(), "public");
    assert_still_secret(&view);
}

/// 3: links that lead out or around.
#[test]
fn links_that_lead_elsewhere() {
    let Some(view) = guarded() else { return };
    let absolute = view.at("secret");
    for target in
        [absolute.to_str().unwrap(), "../secret", "../open/../secret", "/proc/self/cwd/secret"]
    {
        let _ = fs::remove_file(view.at("open/way"));
        std::os::unix::fs::symlink(target, view.at("open/way")).unwrap();
        assert!(fs::read(view.at("open/way")).is_err(), "{target}");
    }
    assert!(fs::read(view.at("open/../secret")).is_err());
    assert!(fs::read(view.at("open/..//./secret")).is_err());
    assert_still_secret(&view);
}

/// 4: a hard link of a secret to an allowed name.
#[test]
fn hard_links_of_secrets() {
    let Some(view) = guarded() else { return };
    for secret in SECRETS {
        assert!(fs::hard_link(view.at(secret), view.at("open/got")).is_err(), "{secret}");
    }
    assert!(fs::hard_link(view.at("docs/page"), view.at("open/page")).is_err());
    let fd = opens(view.at("secret"), OFlags::PATH).unwrap();
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let follow = AtFlags::SYMLINK_FOLLOW;
    assert!(rustix::fs::linkat(CWD, path, CWD, view.at("open/got"), follow).is_err());
    assert_still_secret(&view);
}

/// 5, 6: renames of a secret, of a directory above it, and over it.
#[test]
fn renames_of_secrets() {
    let Some(view) = guarded() else { return };
    for from in ["secret", "keys/a.pem", "vault", "vault/inner", "hidden", "docs/page", "docs"] {
        assert!(fs::rename(view.at(from), view.at("open/got")).is_err(), "{from}");
    }
    assert!(fs::rename(view.at("open/file"), view.at("secret")).is_err());
    assert!(fs::rename(view.at("open/file"), view.at("docs/page")).is_err());
    assert!(fs::rename(view.at("open/file"), view.at("docs/new")).is_err());
    // `keys` itself may move: its secret is one wherever it is.
    let _ = fs::rename(view.at("keys"), view.at("moved"));
    let _ = fs::rename(view.at("moved"), view.at("keys"));
    assert_still_secret(&view);
}

/// 6: a rule that names a place in a directory, which moves.
#[test]
fn moves_of_directories_above() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'a/b/key'\naction = 'deny'\n";
    let view = View::with(policy, &[("a/b/key", SECRET), ("c/d/key", "public")]);
    for (from, to) in [("a", "x"), ("a/b", "x"), ("a/b", "a/c")] {
        let moved = rustix::fs::rename(view.at(from), view.at(to));
        assert_eq!(moved, Err(Errno::ACCESS), "{from} to {to}");
    }
    let exchange =
        rustix::fs::renameat_with(CWD, view.at("a"), CWD, view.at("c"), RenameFlags::EXCHANGE);
    assert!(exchange.is_err());
    // `mv` does not begin to copy what it could not remove.
    let moved =
        std::process::Command::new("mv").arg(view.at("a/b")).arg(view.at("x")).output().unwrap();
    assert!(!moved.status.success());
    assert_eq!(fs::read_to_string(view.below("a/b/key")).unwrap(), SECRET);
    assert!(fs::read(view.at("a/b/key")).is_err());
    assert!(fs::read(view.at("x/key")).is_err());
    assert!(!view.below("x").exists());
    // What no rule names moves freely.
    fs::rename(view.at("c/d"), view.at("c/e")).unwrap();
    assert_eq!(fs::read_to_string(view.at("c/e/key")).unwrap(), "public");
}

/// `mv` copies what it is refused as between file systems, and would remove half of the original.
#[test]
fn what_holds_something_read_only_is_moved_whole_or_not_at_all() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'repo/config'\noperation = ['write', 'create']\n\
                  action = 'read-only'\n";
    let files = [("repo/config", "kept"), ("repo/objects/a", "a"), ("repo/z", "z")];
    let view = View::with(policy, &files);
    assert_eq!(rustix::fs::rename(view.at("repo"), view.at("moved")), Err(Errno::ROFS));
    let mv = std::process::Command::new("mv").arg(view.at("repo")).arg(view.at("moved")).output();
    let said = String::from_utf8(mv.unwrap().stderr).unwrap();
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(!view.below("moved").exists());
    for (name, text) in files {
        assert_eq!(fs::read_to_string(view.below(name)).unwrap(), text);
    }
    // Nothing in it is kept: copied, as what is copied is judged anew.
    fs::create_dir(view.below("repo/sub")).unwrap();
    fs::rename(view.at("repo/sub"), view.at("sub")).unwrap();
}

/// The same where its content tells that it may not be removed.
#[test]
fn what_holds_something_kept_for_its_content_is_moved_whole_or_not_at_all() {
    if !can_mount() {
        return;
    }
    for (action, errno) in [("redact", Errno::ROFS), ("deny", Errno::ACCESS)] {
        let policy = format!(
            "[[rule]]\npath = 'ct/**'\nkind = 'file'\ncontent = {{ regex = 'SECRETS' }}\n\
             action = '{action}'\n"
        );
        let files = [("ct/a", "public"), ("ct/s", "SECRETS password=abcd1234efgh"), ("ct/z", "z")];
        let view = View::with(&policy, &files);
        assert_eq!(rustix::fs::rename(view.at("ct"), view.at("n")), Err(errno), "{action}");
        let mv = std::process::Command::new("mv").arg(view.at("ct")).arg(view.at("n")).output();
        assert!(!mv.unwrap().status.success());
        assert!(!view.below("n").exists(), "{action}");
        for (name, text) in files {
            assert_eq!(fs::read_to_string(view.below(name)).unwrap(), text);
        }
        fs::remove_file(view.below("ct/s")).unwrap();
        let mv = std::process::Command::new("mv").arg(view.at("ct")).arg(view.at("n")).output();
        assert!(mv.unwrap().status.success(), "{action}");
        assert_eq!(fs::read_to_string(view.below("n/z")).unwrap(), "z");
    }
}

/// The same where it is not seen: `mv` would copy the rest, and could not remove the directories.
#[test]
fn what_holds_something_hidden_is_moved_whole_or_not_at_all() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'proj/sub/.env'\naction = 'hide'\n\
                  [[rule]]\npath = '**/.secret'\naction = 'hide'\n";
    let files = [("proj/f1", "1"), ("proj/sub/.env", SECRET), ("proj/sub/g", "g")];
    let further = [("free/.secret", SECRET), ("free/f", "f")];
    let view = View::with(policy, &[&files[..], &further].concat());
    assert_eq!(rustix::fs::rename(view.at("proj"), view.at("proj2")), Err(Errno::NOTEMPTY));
    assert_eq!(rustix::fs::rename(view.at("proj/sub"), view.at("sub")), Err(Errno::NOTEMPTY));
    let mv = std::process::Command::new("mv").arg(view.at("proj")).arg(view.at("proj2")).output();
    let said = String::from_utf8(mv.unwrap().stderr).unwrap();
    assert!(said.contains("Directory not empty"), "{said}");
    assert!(!view.below("proj2").exists());
    for (name, text) in files {
        assert_eq!(fs::read_to_string(view.below(name)).unwrap(), text);
    }
    // Hidden wherever it is, it moves along.
    fs::rename(view.at("free"), view.at("moved")).unwrap();
    assert_eq!(fs::read_to_string(view.below("moved/.secret")).unwrap(), SECRET);
    assert!(fs::read(view.at("moved/.secret")).is_err());
}

/// 7: a secret with another name since before, once the server knows both.
#[test]
fn hard_links_that_were_there_before() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    fs::write(base.path().join("secret"), SECRET).unwrap();
    fs::hard_link(base.path().join("secret"), base.path().join("alias")).unwrap();
    let view = View::of(base.path(), POLICY, &[]);
    assert!(fs::metadata(view.at("secret")).is_ok());
    assert!(fs::read(view.at("alias")).is_err());
    assert!(fs::hard_link(view.at("alias"), view.at("third")).is_err());
}

/// 8, 9: a descriptor that allows little, opened again.
#[test]
fn descriptors_opened_again() {
    let Some(view) = guarded() else { return };
    let handle = opens(view.at("secret"), OFlags::PATH).unwrap();
    let again = |fd: &OwnedFd, flags| opens(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags);
    assert_eq!(refusal(again(&handle, OFlags::RDONLY)), Some(Errno::ACCESS));
    let reader = opens(view.at("docs/page"), OFlags::RDONLY).unwrap();
    assert_eq!(refusal(again(&reader, OFlags::RDWR)), Some(Errno::ROFS));
    assert_eq!(refusal(again(&reader, OFlags::RDONLY | OFlags::TRUNC)), Some(Errno::ROFS));
    assert_eq!(rustix::io::write(&reader, b"x"), Err(Errno::BADF));
    assert_eq!(rustix::fs::ftruncate(&reader, 0), Err(Errno::INVAL));
    // After the last name is gone, the decision stays.
    fs::write(view.at("open/later.txt"), "x").unwrap();
    let secret = opens(view.at("secret"), OFlags::PATH).unwrap();
    fs::remove_file(view.below("secret")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert!(again(&secret, OFlags::RDONLY).is_err());
}

/// 8, 9: a secret, and a directory above one, that others move out of the directory beneath.
#[test]
fn what_was_moved_out_keeps_its_decision() {
    let Some(view) = guarded() else { return };
    let handles = ["secret", "vault/inner/key"].map(|name| opens(view.at(name), OFlags::PATH));
    let outside = view.root().parent().unwrap();
    fs::rename(view.below("secret"), outside.join("secret")).unwrap();
    fs::rename(view.below("vault/inner"), outside.join("inner")).unwrap();
    // At once, and when nothing holds any more that the kernel remembers.
    for pause in [Duration::ZERO, Duration::from_millis(1100)] {
        std::thread::sleep(pause);
        for handle in &handles {
            let path = format!("/proc/self/fd/{}", handle.as_ref().unwrap().as_raw_fd());
            for flags in [OFlags::RDONLY, OFlags::RDWR] {
                assert!(opens(&path, flags).is_err(), "{path} {flags:?} after {pause:?}");
            }
            let linked =
                rustix::fs::linkat(CWD, &path, CWD, view.at("got"), AtFlags::SYMLINK_FOLLOW);
            assert!(linked.is_err(), "{path} after {pause:?}");
        }
        assert!(fs::read(view.at("secret")).is_err() && fs::read(view.at("got")).is_err());
    }
}

/// 11, 12: every way to change what is read-only.
#[test]
fn changes_of_what_is_read_only() {
    let Some(view) = guarded() else { return };
    let page = view.at("docs/page");
    for flags in [
        OFlags::WRONLY,
        OFlags::RDWR,
        OFlags::RDONLY | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::APPEND,
        OFlags::RDWR | OFlags::DIRECT,
    ] {
        assert_eq!(refusal(opens(&page, flags)), Some(Errno::ROFS), "{flags:?}");
    }
    let rofs = |result: Result<(), Errno>| assert_eq!(refusal(result), Some(Errno::ROFS));
    let mode = Mode::from_raw_mode(0o777);
    rofs(rustix::fs::chmod(&page, mode));
    rofs(rustix::fs::chown(&page, Some(rustix::fs::Uid::from_raw(5)), None));
    rofs(rustix::fs::setxattr(&page, "user.x", b"1", rustix::fs::XattrFlags::empty()));
    rofs(rustix::fs::unlink(&page));
    rofs(rustix::fs::mkdir(view.at("docs/dir"), mode));
    rofs(rustix::fs::symlink("page", view.at("docs/link")));
    rofs(rustix::fs::link(view.at("open/file"), view.at("docs/link")));
    rofs(opens(view.at("docs/new"), OFlags::CREATE).map(|_| ()));
    rofs(rustix::fs::mknodat(CWD, view.at("docs/f"), rustix::fs::FileType::Fifo, mode, 0));
    assert!(opens(view.at("docs"), OFlags::TMPFILE | OFlags::RDWR).is_err());
    assert!(fs::File::options().write(true).open(&page).is_err());
    let reader = opens(&page, OFlags::RDONLY).unwrap();
    assert!(rustix::fs::fallocate(&reader, FallocateFlags::empty(), 0, 10).is_err());
    assert!(rustix::fs::futimens(&reader, &now()).is_err());
    assert!(rustix::fs::fchmod(&reader, mode).is_err());
    let public = opens(view.at("open/file"), OFlags::RDONLY).unwrap();
    assert!(rustix::fs::copy_file_range(&public, None, &reader, None, 3).is_err());
    assert!(crate::mapped::Map::new(reader.as_fd(), 4, true, true).is_err());
    assert_eq!(fs::read_to_string(view.below("docs/page")).unwrap(), "page");
    assert_eq!(fs::read_dir(view.below("docs")).unwrap().count(), 1);
}

fn now() -> rustix::fs::Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    rustix::fs::Timestamps { last_access: now, last_modification: now }
}

/// Calls that take a name, or a place in a directory, for something else than to open it.
#[test]
fn hidden_names_are_not_found_by_other_calls() {
    use rustix::fs::{ResolveFlags, SeekFrom, inotify};
    let Some(view) = guarded() else { return };
    let gone = |result: Result<(), Errno>| assert_eq!(refusal(result), Some(Errno::NOENT));
    let hidden = view.at("hidden");
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    let all = inotify::WatchFlags::ALL_EVENTS;
    gone(inotify::add_watch(&watch, &hidden, all).map(|_| ()));
    gone(rustix::fs::getxattr(&hidden, "user.x", &mut [0; 8][..]).map(|_| ()));
    gone(rustix::fs::statfs(&hidden).map(|_| ()));
    gone(rustix::fs::chmod(&hidden, Mode::from_raw_mode(0o777)));
    gone(rustix::fs::utimensat(CWD, &hidden, &now(), AtFlags::empty()));
    let top = opens(view.root(), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    let exchange =
        |name| rustix::fs::renameat_with(&top, name, &top, "open", RenameFlags::EXCHANGE);
    gone(exchange("hidden"));
    let deep = format!("{}hidden/x", "open/../".repeat(400));
    for path in ["hidden/x", "./open/../hidden/x", "docs/.././/hidden/x", &deep] {
        let (flags, mode) = (OFlags::RDONLY, Mode::empty());
        for resolve in [ResolveFlags::BENEATH, ResolveFlags::IN_ROOT, ResolveFlags::NO_SYMLINKS] {
            // Not certain, where others mount or rename something on the machine meanwhile.
            let opened = std::iter::repeat_with(|| {
                rustix::fs::openat2(&top, path, flags, mode, resolve).map(|_| ())
            });
            gone(opened.take(10_000).find(|result| *result != Err(Errno::AGAIN)).unwrap());
        }
    }
    for cookie in [0, 1, 2, 3, 1 << 31, u64::MAX >> 1] {
        // Not every number is a place.
        if rustix::fs::seek(&top, SeekFrom::Start(cookie)).is_err() {
            continue;
        }
        let mut buffer = Vec::with_capacity(8192);
        let mut entries = rustix::fs::RawDir::new(&top, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            assert_ne!(entry.file_name().to_bytes(), b"hidden", "from {cookie}");
        }
    }
    assert_still_secret(&view);
}

/// 14, 15: special files and devices.
#[test]
fn devices_do_not_open() {
    let Some(view) = guarded() else { return };
    let device = rustix::fs::makedev(1, 3);
    let kind = rustix::fs::FileType::CharacterDevice;
    let made =
        rustix::fs::mknodat(CWD, view.at("open/null"), kind, Mode::from_raw_mode(0o666), device);
    if made.is_ok() {
        assert_eq!(refusal(opens(view.at("open/null"), OFlags::RDWR)), Some(Errno::ACCESS));
    }
}

/// 18: a file without a name, given a denied one.
#[test]
fn unnamed_files_get_no_denied_name() {
    let Some(view) = guarded() else { return };
    let file = opens(view.at("open"), OFlags::TMPFILE | OFlags::RDWR).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let name = |to: &str| rustix::fs::linkat(CWD, &path, CWD, view.at(to), AtFlags::SYMLINK_FOLLOW);
    assert!(name("keys/new.pem").is_err());
    assert!(name("docs/new").is_err());
    assert!(name("vault/new").is_err());
}

/// 20: spellings of a name that are not the name, and the name however it is reached.
#[test]
fn strange_names_do_not_slip_by() {
    let Some(view) = guarded() else { return };
    for name in
        [&b"open/\xff.pem"[..], b"open/new\nline.pem", b"open/.pem", "open/é.pem".as_bytes()]
    {
        let path = Path::new(OsStr::from_bytes(name));
        assert!(fs::write(view.root().join(path), "x").is_err(), "{path:?}");
        fs::write(view.lower().join(path), SECRET).unwrap();
        assert!(fs::read(view.root().join(path)).is_err(), "{path:?}");
    }
    // Another case is another name, as it is beneath.
    fs::write(view.at("open/x.PEM"), "x").unwrap();
    assert_still_secret(&view);
}

/// 21: names too long, trees too deep: refused, not judged by half a path.
#[test]
fn long_names_are_judged_as_a_whole() {
    let Some(view) = guarded() else { return };
    let name = format!("open/{}.pem", "x".repeat(251));
    fs::write(view.below(&name), SECRET).unwrap();
    assert!(fs::read(view.at(&name)).is_err());
    let name = format!("open/{}.pem", "x".repeat(252));
    assert!(fs::write(view.at(&name), "x").is_err());
    let mut here = opens(view.at("open"), OFlags::DIRECTORY).unwrap();
    let dir = "d".repeat(250);
    for _ in 0..40 {
        rustix::fs::mkdirat(&here, &dir, Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, &dir, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let made = rustix::fs::openat(&here, "deep.pem", OFlags::CREATE, Mode::from_raw_mode(0o600));
    assert_eq!(refusal(made), Some(Errno::ACCESS));
    let made = rustix::fs::openat(&here, "deep.txt", OFlags::CREATE, Mode::from_raw_mode(0o600));
    assert!(made.is_ok());
    let _ = std::process::Command::new("rm").arg("-rf").arg(view.below("open").join(dir)).status();
}

/// 13, 22: a secret by way of another system call.
#[test]
fn other_ways_to_read() {
    let Some(view) = guarded() else { return };
    let handle = opens(view.at("secret"), OFlags::PATH).unwrap();
    let out = opens(view.at("open/out"), OFlags::CREATE | OFlags::RDWR).unwrap();
    assert!(rustix::fs::copy_file_range(&handle, None, &out, None, 10).is_err());
    assert!(crate::mapped::Map::new(handle.as_fd(), 10, false, false).is_err());
    assert!(std::process::Command::new(view.at("secret")).spawn().is_err());
    assert!(rustix::fs::getxattr_query(view.at("secret"), "user.x").is_err());
    assert!(rustix::fs::readlink(view.at("secret"), Vec::new()).is_err());
    assert_still_secret(&view);
}

/// 26: who opens first decides nothing.
#[test]
fn a_file_made_by_the_caller_is_judged_too() {
    let Some(view) = guarded() else { return };
    assert_eq!(refusal(opens(view.at("open/new.pem"), OFlags::CREATE)), Some(Errno::ACCESS));
    let mut file = fs::File::create(view.at("open/new.txt")).unwrap();
    file.write_all(b"mine").unwrap();
    fs::rename(view.at("open/new.txt"), view.at("open/other.txt")).unwrap();
    let mut text = String::new();
    fs::File::open(view.at("open/other.txt")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "mine");
}

/// Rules about callers: another user, another program.
#[test]
fn callers_are_told_apart() {
    if !can_mount() {
        return;
    }
    let cat = fs::canonicalize("/bin/cat").unwrap();
    let policy = format!(
        "[[rule]]\npath = 'f'\nexe = '{}'\naction = 'deny'\n[[rule]]\npath = 'g'\nuid = 1234\naction = 'deny'\n",
        cat.display()
    );
    let view = View::with(&policy, &[("f", "text"), ("g", "text")]);
    for path in [view.root().parent().unwrap(), view.lower()] {
        rustix::fs::chmod(path, Mode::from_raw_mode(0o755)).unwrap();
    }
    let run = |program: &str, file: &str| {
        std::process::Command::new(program).arg(view.at(file)).output().unwrap().status.success()
    };
    assert!(!run("cat", "f"));
    assert!(run("head", "f"));
    assert!(run("cat", "g"));
    let path = view.at("g");
    let read = |uid| crate::harness::as_user(uid, uid, || fs::read(&path).is_ok());
    assert!(!read(1234));
    assert!(read(1235));
}
