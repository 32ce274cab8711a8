//! Random histories of names: whatever is permitted, nobody gets more of a file than the strictest
//! name that it ever had allows.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libc::{O_RDONLY, O_WRONLY};
use proptest::prelude::*;
use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

use crate::kernel::Played;

const DIRS: [&str; 4] = ["a", "a/sub", "b", "c"];
const NAMES: [&str; 3] = ["x", "y", "z"];

#[derive(Clone, Debug)]
enum Step {
    Rename(usize, usize, bool),
    Link(usize, usize),
    Unlink(usize),
    Create(usize),
    MoveDir(usize, usize),
    /// Somebody outside of the view gives a file a further name.
    LinkOutside(usize, usize),
    Look(usize),
}

/// Every path that a file may have.
fn path(number: usize) -> String {
    let (dir, name) = (number / NAMES.len() % DIRS.len(), number % NAMES.len());
    format!("{}/{}", DIRS[dir], NAMES[name])
}

const PATHS: usize = DIRS.len() * NAMES.len();

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || 0..PATHS;
    let step = prop_oneof![
        3 => (at(), at(), any::<bool>()).prop_map(|(a, b, swap)| Step::Rename(a, b, swap)),
        3 => (at(), at()).prop_map(|(a, b)| Step::Link(a, b)),
        2 => at().prop_map(Step::Unlink),
        1 => at().prop_map(Step::Create),
        1 => (0..DIRS.len(), 0..DIRS.len()).prop_map(|(a, b)| Step::MoveDir(a, b)),
        1 => (at(), at()).prop_map(|(a, b)| Step::LinkOutside(a, b)),
        1 => at().prop_map(Step::Look),
    ];
    proptest::collection::vec(step, 1..24)
}

fn policy() -> impl Strategy<Value = String> {
    let glob = prop_oneof![
        (0..DIRS.len()).prop_map(|dir| DIRS[dir].to_owned()),
        (0..PATHS).prop_map(path),
        (0..NAMES.len()).prop_map(|name| format!("**/{}", NAMES[name])),
    ];
    let action = prop_oneof![
        Just("action = 'deny'"),
        Just("action = 'hide'"),
        Just("action = 'read-only'"),
        Just("action = 'deny'\noperation = 'read'"),
        Just("action = 'deny'\noperation = 'write'"),
        Just("action = 'userspace'"),
        Just("action = 'passthrough'"),
    ];
    let rule = (glob, action).prop_map(|(g, a)| format!("[[rule]]\npath = '{g}'\n{a}\n"));
    proptest::collection::vec(rule, 1..4).prop_map(|rules| rules.concat())
}

/// Every name that each inode ever had, and the inode behind each name now.
#[derive(Default)]
struct Model {
    ever: BTreeMap<u64, BTreeSet<String>>,
    now: BTreeMap<String, u64>,
}

impl Model {
    fn update(&mut self, lower: &Path) {
        self.now.clear();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(lower.join(&dir)).unwrap().map(Result::unwrap) {
                let path = format!("{dir}{}", entry.file_name().to_str().unwrap());
                let meta = entry.metadata().unwrap();
                if meta.is_dir() {
                    dirs.push(format!("{path}/"));
                } else {
                    self.ever.entry(meta.ino()).or_default().insert(path.clone());
                    self.now.insert(path, meta.ino());
                }
            }
        }
        // Inode numbers are used again.
        let alive: BTreeSet<_> = self.now.values().copied().collect();
        self.ever.retain(|inode, _| alive.contains(inode));
    }

    fn allows(&self, policy: &Policy, inode: u64, operation: Operation) -> bool {
        let caller = CallerFacts { uid: 0, gid: 0, exe: Some(b"/none") };
        self.ever[&inode].iter().all(|path| {
            let facts = Facts { path: path.as_bytes(), kind: Kind::File, size: 1, head: None };
            policy.decide(&facts, operation, &caller).verdict == Verdict::Allow
        })
    }
}

fn lookup(view: &Played, path: &str) -> Option<u64> {
    let mut node = crate::kernel::ROOT;
    for name in path.split('/') {
        node = view.lookup_in(node, name).ok()??.nodeid;
    }
    Some(node)
}

/// Nodes of the directories on the way have to be visible, or the kernel would not ask.
fn reachable(view: &Played, path: &str) -> bool {
    path.rsplit_once('/').is_none_or(|(dir, _)| lookup(view, dir).is_some())
}

fn carry_out(view: &Played, step: &Step) {
    match step {
        Step::Rename(from, to, swap) => {
            let (from, to) = (path(*from), path(*to));
            if reachable(view, &from) && reachable(view, &to) {
                let _ = view.rename(&from, &to, if *swap { libc::RENAME_EXCHANGE } else { 0 });
            }
        }
        Step::Link(from, to) => {
            let (from, to) = (path(*from), path(*to));
            if reachable(view, &to)
                && let Some(node) = lookup(view, &from)
            {
                let _ = view.link_node(node, &to);
            }
        }
        Step::Unlink(at) => {
            if reachable(view, &path(*at)) {
                let _ = view.unlink(&path(*at));
            }
        }
        Step::Create(at) => {
            if reachable(view, &path(*at))
                && let Ok(handle) = view.create(&path(*at), O_WRONLY)
            {
                view.release(handle);
            }
        }
        Step::MoveDir(from, to) => {
            if reachable(view, DIRS[*from]) && reachable(view, DIRS[*to]) {
                let _ = view.rename(DIRS[*from], DIRS[*to], libc::RENAME_EXCHANGE);
            }
        }
        Step::LinkOutside(from, to) => {
            let _ = std::fs::hard_link(view.below(&path(*from)), view.below(&path(*to)));
        }
        Step::Look(at) => drop(lookup(view, &path(*at))),
    }
}

fn check(view: &Played, model: &Model, policy: &Policy) -> Result<(), TestCaseError> {
    for (path, inode) in &model.now {
        let Some(node) = lookup(view, path) else { continue };
        for (flags, operation) in [(O_RDONLY, Operation::Read), (O_WRONLY, Operation::Write)] {
            let Ok(handle) = view.open_node(node, flags) else { continue };
            view.release(handle);
            let names = &model.ever[inode];
            prop_assert!(
                model.allows(policy, *inode, operation),
                "{operation} of `{path}` is allowed, which had the names {names:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nobody_gets_more_than_the_strictest_name_ever_allowed(
        text in policy(),
        files in proptest::collection::btree_set(0..PATHS, 2..6),
        links in proptest::collection::vec((0..PATHS, 0..PATHS), 0..4),
        steps in steps(),
    ) {
        let names: Vec<_> = files.iter().map(|number| path(*number)).collect();
        let mut given: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
        let keepers: Vec<_> = DIRS.iter().map(|dir| format!("{dir}/keep")).collect();
        given.extend(keepers.iter().map(|name| (name.as_str(), "x")));
        let policy = Policy::parse(&text, "p.toml").unwrap();
        let view = Played::with(&text, &given);
        // As good as links that were there before: nobody has asked for anything yet.
        for (from, to) in links {
            let _ = std::fs::hard_link(view.below(&path(from)), view.below(&path(to)));
        }
        let mut model = Model::default();
        model.update(view.lower());
        check(&view, &model, &policy)?;
        for step in &steps {
            carry_out(&view, step);
            model.update(view.lower());
            check(&view, &model, &policy)?;
        }
    }
}
