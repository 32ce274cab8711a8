//! Nodes: from the first lookup to the last FORGET, under changes from both sides.

use libc::O_RDONLY;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tollgate_fuse::InitFlags;
use tollgate_fuse::abi::{BatchForgetIn, ForgetIn, ForgetOne, opcode};
use tollgate_view::Config;
use zerocopy::IntoBytes;

use crate::kernel::{Played, ROOT};

#[test]
fn a_node_is_known_until_its_last_forget() {
    let view = Played::with("", &[("a", "text")]);
    let node = view.node("a");
    assert_eq!(view.node("a"), node);
    assert_eq!(view.view().snapshot().nodes, 2);
    view.tell(opcode::FORGET, node, &ForgetIn { nlookup: 1 });
    assert_eq!(view.attributes(node).unwrap().size, 4);
    view.tell(opcode::FORGET, node, &ForgetIn { nlookup: 1 });
    assert_eq!(view.attributes(node).unwrap_err(), Errno::STALE);
    assert_ne!(view.node("a"), node, "ids are never reused");
    view.tell(opcode::FORGET, ROOT, &ForgetIn { nlookup: 99 });
    assert!(view.attributes(ROOT).is_ok());
}

#[test]
fn many_are_forgotten_at_once() {
    let files: Vec<_> = (0..50).map(|n| format!("f{n}")).collect();
    let files: Vec<_> = files.iter().map(|name| (name.as_str(), "")).collect();
    let view = Played::with("", &files);
    let nodes: Vec<_> = files.iter().map(|(name, _)| view.node(name)).collect();
    assert_eq!(view.view().snapshot().nodes, 51);
    #[derive(IntoBytes, zerocopy::Immutable)]
    #[repr(C)]
    struct Batch(BatchForgetIn, [ForgetOne; 50]);
    let all = std::array::from_fn(|i| ForgetOne { nodeid: nodes[i], nlookup: 1 });
    view.tell(opcode::BATCH_FORGET, 0, &Batch(BatchForgetIn { count: 50, dummy: 0 }, all));
    assert_eq!(view.view().snapshot().nodes, 1);
}

#[test]
fn a_forgotten_file_gives_its_registration_up() {
    let view = Played::with("", &[("a", "text")]);
    let handle = view.opens("a", O_RDONLY);
    assert_eq!(view.backings(), 1);
    view.tell(opcode::FORGET, handle.node, &ForgetIn { nlookup: 1 });
    assert_eq!(view.backings(), 0);
}

#[test]
fn another_file_behind_a_known_name_is_not_taken_for_it() {
    let view = Played::with("", &[("dir/a", "old")]);
    let node = view.node("dir/a");
    std::fs::write(view.below("new"), "other").unwrap();
    std::fs::rename(view.below("new"), view.below("dir/a")).unwrap();
    assert_eq!(view.attributes(node).unwrap_err(), Errno::STALE);
    assert_eq!(view.open_node(node, O_RDONLY).unwrap_err(), Errno::STALE);
    assert_ne!(view.node("dir/a"), node);
    assert!(view.view().snapshot().unavailable.iter().all(|one| one.feature != "passthrough"));
}

#[test]
fn a_directory_moved_outside_is_judged_where_it_is_found_again() {
    let policy = "[[rule]]\npath = 'vault'\naction = 'deny'\n";
    let view = Played::with(policy, &[("plain/sub/a", "text")]);
    let file = view.node("plain/sub/a");
    assert!(view.open_node(file, O_RDONLY).unwrap().is_passthrough());
    std::fs::create_dir(view.below("vault")).unwrap();
    std::fs::rename(view.below("plain/sub"), view.below("vault/sub")).unwrap();
    assert_eq!(view.node("vault/sub/a"), file);
    assert_eq!(view.open_node(file, O_RDONLY).unwrap_err(), Errno::ACCESS);
}

#[test]
fn a_missing_name_is_a_negative_entry_and_appears_when_it_is_made() {
    let view = Played::new("");
    assert!(view.lookup("a").is_none());
    std::fs::write(view.below("a"), "").unwrap();
    assert!(view.lookup("a").is_some());
    assert_eq!(view.lookup_in(view.node("a"), "b").unwrap_err(), Errno::NOTDIR);
    assert_eq!(view.lookup_in(4711, "b").unwrap_err(), Errno::STALE);
}

#[test]
fn few_descriptors_are_enough_for_many_directories() {
    let files: Vec<_> = (0..200).map(|n| format!("d{n}/sub/file")).collect();
    let files: Vec<_> = files.iter().map(|name| (name.as_str(), "x")).collect();
    let view = Played::configured("", &files, tollgate_fuse::InitFlags::all(), |config| {
        tollgate_view::Config { max_descriptors: Some(40), ..config }
    });
    for (path, _) in &files {
        assert!(view.opens(path, O_RDONLY).is_passthrough());
    }
    let snapshot = view.view().snapshot();
    assert!(snapshot.descriptors_used <= snapshot.descriptors_max, "{snapshot:?}");
}

/// A descriptor that is kept while a name may go, and dropped when it stays, counts once.
#[test]
fn names_that_stay_after_all_cost_no_descriptor_each_time() {
    let view = Played::with("", &[("y/a/file", "x")]);
    let mut used = 0;
    for round in 0..20 {
        assert_eq!(view.rmdir("y").unwrap_err(), Errno::NOTEMPTY);
        assert_eq!(view.rename("y", "y/a/y", 0).unwrap_err(), Errno::INVAL);
        let now = view.view().snapshot().descriptors_used;
        if round == 0 {
            used = now;
        }
        assert_eq!(now, used, "in round {round}");
    }
}

/// A tree as deep as a caller likes to make it: nothing may recurse, whatever has to be walked
/// again.
#[test]
fn a_very_deep_tree_is_walked_judged_and_forgotten() {
    const DEPTH: usize = 13_000;
    let policy = "[[rule]]\npath = '**/secret'\naction = 'deny'\n";
    let few = |config| Config { max_descriptors: Some(64), ..config };
    let view = Played::configured(policy, &[], InitFlags::all(), few);
    let mut dir: rustix::fd::OwnedFd = std::fs::File::open(view.lower()).unwrap().into();
    let mut node = ROOT;
    let mut half = ROOT;
    for depth in 0..DEPTH {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        dir = rustix::fs::openat(&dir, "d", flags, Mode::empty()).unwrap();
        node = view.lookup_in(node, "d").unwrap().unwrap().nodeid;
        half = if depth == DEPTH / 2 { node } else { half };
    }
    let flags = OFlags::CREATE;
    for name in ["secret", "plain"] {
        rustix::fs::openat(&dir, name, flags, Mode::RUSR).unwrap();
    }
    // Descriptors near the bottom were closed meanwhile.
    assert!(view.lookup_in(half, "d").unwrap().is_some());
    let [secret, plain] =
        ["secret", "plain"].map(|name| view.lookup_in(node, name).unwrap().unwrap().nodeid);
    assert_eq!(view.open_node(secret, O_RDONLY).unwrap_err(), Errno::ACCESS);
    view.release(view.open_node(plain, O_RDONLY).unwrap());
    // A rename above makes every path below it stale at once.
    view.rename("d", "moved", 0).unwrap();
    assert_eq!(view.open_node(secret, O_RDONLY).unwrap_err(), Errno::ACCESS);
    let lower = view.lower().to_owned();
    drop((dir, view));
    let _ = std::process::Command::new("rm").arg("-rf").arg(lower).status();
}

/// Below a path that is too long to be judged, look-ups fail: the kernel was told of nothing, and forgets nothing.
#[test]
fn what_cannot_be_looked_up_leaves_nothing() {
    let hidden = "mode = 'audit'\n[[rule]]\npath = '**/secret'\naction = 'hide'\n";
    let denied = "[[rule]]\npath = 'denied/**'\naction = 'deny'\n";
    let name = "d".repeat(250);
    for policy in [hidden, denied] {
        let view = Played::new(policy);
        let mut dir: rustix::fd::OwnedFd = std::fs::File::open(view.lower()).unwrap().into();
        let mut node = ROOT;
        for _ in 0..65_536 / (name.len() + 1) {
            rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            dir = rustix::fs::openat(&dir, &name, flags, Mode::empty()).unwrap();
            node = view.lookup_in(node, &name).unwrap().unwrap().nodeid;
        }
        let known = view.view().snapshot().nodes;
        for number in 0..50 {
            // Its names are kept once it was judged.
            let (file, link) = (number.to_string(), format!("{number}{name}"));
            std::fs::write(view.below(&file), "").unwrap();
            rustix::fs::linkat(CWD, view.below(&file), &dir, &link, AtFlags::empty()).unwrap();
            let opened = view.opens(&file, O_RDONLY);
            assert_eq!(view.lookup_in(node, &link).err(), Some(Errno::NAMETOOLONG), "{policy}");
            view.tell(opcode::FORGET, opened.node, &ForgetIn { nlookup: 1 });
        }
        assert_eq!(view.view().snapshot().nodes, known, "{policy}");
    }
}
