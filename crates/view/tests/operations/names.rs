//! Making, removing and moving names; what would weaken a decision is refused.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::{O_RDONLY, O_RDWR};
use rustix::io::Errno;
use tollgate_fuse::InitFlags;
use tollgate_fuse::abi::{EntryOut, ForgetIn, MknodIn, opcode};
use tollgate_view::Config;
use zerocopy::IntoBytes;

use crate::kernel::{Played, ROOT, c_string};

const POLICY: &str = "
[[rule]]
path = 'vault'
action = 'deny'
[[rule]]
path = 'docs'
action = 'read-only'
[[rule]]
path = 'watched'
action = 'userspace'
[[rule]]
path = 'deep/**/*.key'
operation = 'read'
action = 'deny'
";

fn view() -> Played {
    Played::with(
        POLICY,
        &[
            ("vault/secret", "secret"),
            ("docs/a", "text"),
            ("watched/a", "watched"),
            ("deep/sub/x.key", "key"),
            ("deep/sub/text", "text"),
            ("plain/a", "plain"),
            ("b", "b"),
        ],
    )
}

const EXCHANGE: u32 = libc::RENAME_EXCHANGE;

#[test]
fn a_plain_rename_moves_the_file_and_its_node() {
    let view = view();
    let node = view.node("plain/a");
    view.rename("plain/a", "c", 0).unwrap();
    assert_eq!(view.node("c"), node);
    assert!(view.lookup("plain/a").is_none());
    assert_eq!(std::fs::read(view.below("c")).unwrap(), b"plain");
    assert!(view.opens("c", O_RDWR).is_passthrough());
}

#[test]
fn a_rename_that_would_weaken_is_refused() {
    let view = view();
    // Away from a directory in which nothing may be changed.
    assert_eq!(view.rename("vault/secret", "c", 0).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.rename("docs/a", "c", 0).unwrap_err(), Errno::ROFS);
    // Allowed on both sides, but the kernel would show bytes that the server has to see.
    assert_eq!(view.rename("watched/a", "c", 0).unwrap_err(), Errno::XDEV);
    // Reading becomes allowed.
    assert_eq!(view.rename("deep/sub/x.key", "x", 0).unwrap_err(), Errno::XDEV);
    assert_eq!(view.rename("deep/sub/x.key", "deep/sub/x", 0).unwrap_err(), Errno::XDEV);
    view.rename("deep/sub/x.key", "deep/y.key", 0).unwrap();
    assert_eq!(view.counts().refused_weakening, 3);
}

#[test]
fn a_rename_over_a_protected_file_is_refused() {
    let view = view();
    assert_eq!(view.rename("b", "vault/secret", 0).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.rename("b", "docs/a", 0).unwrap_err(), Errno::ROFS);
    assert_eq!(std::fs::read(view.below("docs/a")).unwrap(), b"text");
    view.rename("b", "watched/a", 0).unwrap();
    assert_eq!(std::fs::read(view.below("watched/a")).unwrap(), b"b");
}

/// The handle stays as it is, under whichever of these names.
#[test]
fn a_file_that_outgrew_a_rule_while_it_is_open_gets_names_with_the_same_rules() {
    let policy = "
        [[rule]]
        path = 'logs/**'
        size.min = 100
        action = 'userspace'
        [[rule]]
        path = ['watched', 'logs/watched']
        action = 'userspace'";
    let files = [("logs/new", "x"), ("logs/deep/new", "x")];
    let view = Played::with(policy, &files);
    let open = ["logs/new", "logs/deep/new"].map(|name| view.open(name, O_RDWR).unwrap());
    assert!(open[0].is_passthrough() && open[1].is_passthrough());
    for name in ["logs/new", "logs/deep/new"] {
        std::fs::write(view.below(name), [b'x'; 200]).unwrap();
    }
    view.rename("logs/new", "logs/log", 0).unwrap();
    // Other rules ask for the mode there, whatever the size.
    assert_eq!(view.rename("logs/log", "logs/watched", 0).unwrap_err(), Errno::XDEV);
    view.rename("logs/deep", "logs/moved", 0).unwrap();
    view.link("logs/log", "logs/log.1").unwrap();
    assert_eq!(view.rename("logs/log", "watched", 0).unwrap_err(), Errno::XDEV);
    assert_eq!(view.link("logs/log", "logs/watched").map(drop).unwrap_err(), Errno::XDEV);
}

#[test]
fn an_exchange_is_judged_in_both_directions() {
    let view = view();
    assert_eq!(view.rename("b", "watched/a", EXCHANGE).unwrap_err(), Errno::XDEV);
    assert_eq!(view.rename("b", "vault/secret", EXCHANGE).unwrap_err(), Errno::ACCESS);
    view.rename("b", "plain/a", EXCHANGE).unwrap();
    assert_eq!(std::fs::read(view.below("b")).unwrap(), b"plain");
    assert!(view.opens("plain/a", O_RDONLY).is_passthrough());
}

#[test]
fn a_directory_moves_only_if_nothing_below_gets_weaker() {
    let view = view();
    assert_eq!(view.rename("deep", "other", 0).unwrap_err(), Errno::XDEV);
    assert_eq!(view.rename("deep/sub", "sub", 0).unwrap_err(), Errno::XDEV);
    let file = view.node("deep/sub/x.key");
    view.rename("deep/sub", "deep/moved", 0).unwrap();
    assert_eq!(view.node("deep/moved/x.key"), file);
    // Paths below it were rebuilt: the file is judged where it is now.
    assert_eq!(view.open_node(file, O_RDONLY).unwrap_err(), Errno::ACCESS);
    view.rename("plain", "elsewhere", 0).unwrap();
    assert!(view.opens("elsewhere/a", O_RDONLY).is_passthrough());
}

#[test]
fn a_whiteout_and_unknown_flags_are_refused() {
    let view = view();
    assert_eq!(view.rename("b", "c", libc::RENAME_WHITEOUT).unwrap_err(), Errno::INVAL);
    assert_eq!(view.rename("b", "c", 1 << 20).unwrap_err(), Errno::INVAL);
    assert_eq!(view.rename("b", "plain/a", libc::RENAME_NOREPLACE).unwrap_err(), Errno::EXIST);
    assert_eq!(view.rename("missing", "c", 0).unwrap_err(), Errno::NOENT);
}

#[test]
fn a_link_that_would_weaken_is_refused() {
    let view = view();
    assert_eq!(view.link("watched/a", "c").unwrap_err(), Errno::PERM);
    assert_eq!(view.link("vault/secret", "c").unwrap_err(), Errno::PERM);
    assert_eq!(view.link("deep/sub/x.key", "c").unwrap_err(), Errno::PERM);
    assert_eq!(view.link("b", "docs/b").unwrap_err(), Errno::ROFS);
    let node = view.node("b");
    assert_eq!(view.link("b", "plain/b").unwrap().nodeid, node);
    assert_eq!(view.attributes(node).unwrap().nlink, 2);
    // A further name may make the inode stricter.
    view.link("b", "watched/b").unwrap();
    assert!(!view.opens("b", O_RDONLY).is_passthrough());
    assert_eq!(view.counts().refused_weakening, 3);
}

#[test]
fn names_are_made_where_the_policy_allows_it() {
    let view = view();
    assert_eq!(view.mkdir("docs/new").unwrap_err(), Errno::ROFS);
    assert_eq!(view.mkdir("vault/new").unwrap_err(), Errno::ACCESS);
    let made = view.mkdir("new").unwrap();
    assert_eq!(made.attr.mode, 0o040_755);
    assert_eq!(symlink(&view, ROOT, "link", "b").unwrap().attr.mode & 0o170_000, 0o120_000);
    assert_eq!(symlink(&view, view.node("docs"), "link", "b").unwrap_err(), Errno::ROFS);
    let target = view.call(opcode::READLINK, view.node("link"), &[]).unwrap();
    assert_eq!(target, b"b");
    let fifo = MknodIn { mode: 0o010_644, rdev: 0, umask: 0o022, padding: 0 };
    let made: EntryOut =
        view.ask(opcode::MKNOD, ROOT, &[fifo.as_bytes(), &c_string("fifo")]).unwrap();
    assert_eq!(made.attr.mode, 0o010_644);
    let dir = view.node("docs");
    let refused = view.call(opcode::MKNOD, dir, &[fifo.as_bytes(), &c_string("fifo")]);
    assert_eq!(refused.unwrap_err(), Errno::ROFS);
}

fn symlink(view: &Played, dir: u64, name: &str, to: &str) -> Result<EntryOut, Errno> {
    view.ask(opcode::SYMLINK, dir, &[&c_string(name), &c_string(to)])
}

#[test]
fn who_makes_a_link_is_looked_at_where_a_rule_asks_for_it() {
    let passes = |what| format!("[[rule]]\npath = '**'\n{what}\naction = 'passthrough'\n");
    let tasks = |who| format!("[[rule]]\npath = '**/.vscode/t'\n{who}\naction = 'read-only'\n");
    let own = format!("exe = '{}'", std::env::current_exe().unwrap().display());
    let another = "exe = '/usr/bin/another'";
    let symlinks = passes("kind = 'symlink'");
    for (policy, expected) in [
        (symlinks.clone() + &passes(another) + &tasks(""), Err(Errno::ROFS)),
        (symlinks.clone() + &passes(&own) + &tasks(""), Ok(())),
        (tasks(another), Ok(())),
        (symlinks + &tasks(&own), Err(Errno::ROFS)),
    ] {
        let view = Played::with(&policy, &[("a/x", "")]);
        assert_eq!(symlink(&view, ROOT, ".vscode", "z").map(drop), expected, "{policy}");
        // A further name and a later one are judged as the first is.
        std::os::unix::fs::symlink("z", view.below("link")).unwrap();
        assert_eq!(view.rename("link", "a/.vscode", 0), expected, "{policy}");
        std::os::unix::fs::symlink("z", view.below("other")).unwrap();
        view.mkdir("b").unwrap();
        assert_eq!(view.link("other", "b/.vscode").map(drop), expected, "{policy}");
    }
}

#[test]
fn a_link_that_may_not_be_read_says_nothing() {
    let policy = "[[rule]]\npath = 'link'\naction = 'deny'\n";
    let view = Played::new(policy);
    std::os::unix::fs::symlink("target", view.below("link")).unwrap();
    let refused = view.call(opcode::READLINK, view.node("link"), &[]);
    assert_eq!(refused.unwrap_err(), Errno::ACCESS);
}

#[test]
fn names_are_removed_where_the_policy_allows_it() {
    let view = view();
    assert_eq!(view.unlink("vault/secret").unwrap_err(), Errno::ACCESS);
    assert_eq!(view.unlink("docs/a").unwrap_err(), Errno::ROFS);
    assert_eq!(view.unlink("missing").unwrap_err(), Errno::NOENT);
    assert_eq!(view.rmdir("plain").unwrap_err(), Errno::NOTEMPTY);
    view.unlink("plain/a").unwrap();
    view.rmdir("plain").unwrap();
    assert!(!view.below("plain").exists());
}

#[test]
fn a_removed_file_lives_as_long_as_somebody_has_it() {
    let view = view();
    let handle = view.open("b", O_RDONLY).unwrap();
    view.unlink("b").unwrap();
    assert_eq!(view.attributes(handle.node).unwrap().nlink, 0);
    // /proc/self/fd reopens it: judged by its last name.
    assert!(view.open_node(handle.node, O_RDONLY).unwrap().is_passthrough());
    let watched = view.open("watched/a", O_RDONLY).unwrap();
    view.unlink("watched/a").unwrap();
    view.release(watched);
    assert!(!view.open_node(watched.node, O_RDONLY).unwrap().is_passthrough());
    // Another file under the old name is another node.
    std::fs::write(view.below("b"), "again").unwrap();
    assert_ne!(view.node("b"), handle.node);
}

#[test]
fn the_victim_of_a_rename_lives_on_too() {
    let view = view();
    let victim = view.open("plain/a", O_RDONLY).unwrap();
    view.rename("b", "plain/a", 0).unwrap();
    assert_eq!(view.attributes(victim.node).unwrap().size, 5);
    assert_eq!(view.attributes(view.node("plain/a")).unwrap().size, 1);
}

#[test]
fn two_names_of_one_file_renamed_to_each_other_both_stay() {
    let view = view();
    view.link("b", "c").unwrap();
    view.rename("b", "c", 0).unwrap();
    assert_eq!(view.node("b"), view.node("c"));
}

/// The kernel forgets a directory (its cache is short of memory, or a rename had all names dropped)
/// while a file in it is open by another name.
#[test]
fn a_file_is_judged_by_its_other_names_when_the_directory_of_one_is_forgotten() {
    let view = view();
    view.link("plain/a", "c").unwrap();
    let handle = view.open("c", O_RDONLY).unwrap();
    std::fs::hard_link(view.below("docs/a"), view.below("e")).unwrap();
    assert_eq!(view.node("docs/a"), view.node("e"));
    for dir in ["plain", "docs"] {
        view.tell(opcode::FORGET, view.node(dir), &ForgetIn { nlookup: 1_000 });
    }
    // Paths that were kept are built anew after this.
    view.mkdir("x").unwrap();
    view.rename("x", "y", 0).unwrap();
    assert!(view.open_node(handle.node, O_RDWR).unwrap().is_passthrough());
    assert_eq!(view.open("e", O_RDWR).unwrap_err(), Errno::ROFS);
    assert!(view.opens("e", O_RDONLY).is_passthrough());
}

#[test]
fn a_directory_with_a_mount_on_it_or_below_stays_where_it_is() {
    let files = [("a/out/file", "x"), ("plain/b", "y"), ("other/c", "z")];
    let view = Played::configured("", &files, InitFlags::all(), |config| Config {
        mount_points: vec!["a/out".into(), "other".into()],
        ..config
    });
    assert_eq!(view.rename("a", "b", 0).unwrap_err(), Errno::BUSY);
    assert_eq!(view.rename("a/out", "b", 0).unwrap_err(), Errno::BUSY);
    assert_eq!(view.rename("plain", "a", EXCHANGE).unwrap_err(), Errno::BUSY);
    assert_eq!(view.rename("other", "plain", EXCHANGE).unwrap_err(), Errno::BUSY);
    assert_eq!(view.rename("plain", "other", 0).unwrap_err(), Errno::BUSY);
    assert_eq!(view.rmdir("a/out").unwrap_err(), Errno::BUSY);
    // Everything else moves, also in there.
    view.rename("a/out/file", "a/out/renamed", 0).unwrap();
    view.rename("plain", "moved", 0).unwrap();
}

/// With no timeout, names that were looked at are never fresh when they are judged: as on a machine
/// so busy that a request waits longer than the timeout in between.
#[test]
fn a_request_that_waits_for_its_turn_knows_the_names_that_it_looked_at() {
    let view = Played::configured(
        POLICY,
        &[("plain/a", "plain"), ("vault/secret", "secret")],
        InitFlags::all(),
        |config| Config { attr_timeout: Duration::ZERO, ..config },
    );
    view.link("plain/a", "plain/b").unwrap();
    view.rename("plain/b", "c", 0).unwrap();
    view.link("c", "d").unwrap();
    view.rename("d", "plain/a", 0x2).unwrap();
    // A stricter name that others give it counts.
    std::fs::hard_link(view.below("c"), view.below("vault/c")).unwrap();
    assert_eq!(view.rename("c", "plain/c", 0), Err(Errno::ACCESS));
    assert_eq!(view.link("c", "plain/c").map(drop), Err(Errno::PERM));
}

/// A file that others write to is another each time that it is looked at; its names are the same.
#[test]
fn a_file_with_two_names_is_renamed_while_it_is_written() {
    let view = Played::configured(
        POLICY,
        &[("plain/a", "plain"), ("vault/secret", "secret")],
        InitFlags::all(),
        |config| config,
    );
    let beneath = std::fs::File::options().write(true).open(view.below("plain/a")).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                beneath.write_at(b"more", 0).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..300 {
                view.link("plain/a", "plain/b").unwrap_or_else(|e| panic!("link {round}: {e}"));
                view.rename("plain/b", "plain/c", 0)
                    .unwrap_or_else(|e| panic!("rename {round}: {e}"));
                view.unlink("plain/c").unwrap();
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}
