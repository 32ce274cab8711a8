//! One run of the fuzz target: a policy and some paths out of arbitrary bytes.

use crate::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

/// Between two policies that are to hold together.
const AND: char = '\u{1}';

/// Reads `data` as a policy, a NUL, and paths one per line; asks every question and checks that the
/// answers agree. Of two policies with [`AND`] between them, none may allow what the other refuses,
/// neither at first nor when they are read again.
///
/// # Panics
/// If two answers contradict each other.
pub fn fuzz_one(data: &[u8]) {
    let (text, paths) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &b"a\nsrc/main.rs\n.env\nx/id_rsa"[..]),
    };
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Some((one, other)) = text.split_once(AND) {
        hold_together(one, other, paths);
        return;
    }
    let Some(policy) = read(text) else { return };
    policy.warnings().iter().for_each(|warning| assert!(!warning.to_string().is_empty()));
    for path in paths.split(|byte| *byte == b'\n').take(8) {
        for kind in [Kind::File, Kind::Directory, Kind::Symlink] {
            ask(&policy, &Facts { path, kind, size: 7, head: Some(b"\x7fELF a=") });
            ask(&policy, &Facts { path, kind, size: 7, head: None });
        }
    }
}

fn read(text: &str) -> Option<Policy> {
    Policy::parse(text, "fuzz.toml")
        .inspect_err(|error| {
            assert!(error.line() >= 1 && error.column() >= 1);
            assert!(error.to_string().starts_with("fuzz.toml:"));
        })
        .ok()
}

fn hold_together(one: &str, other: &str, paths: &[u8]) {
    let joined = || read(one)?.joined(read(other)?, " (other)").ok();
    let (Some(one), Some(other), Some(both)) = (read(one), read(other), joined()) else { return };
    let caller = CallerFacts { uid: 1000, gid: 100, exe: Some(b"/usr/bin/node") };
    for path in paths.split(|byte| *byte == b'\n').take(8) {
        for kind in [Kind::File, Kind::Directory, Kind::Symlink] {
            let facts = Facts { path, kind, size: 7, head: Some(b"\x7fELF a=") };
            ask(&both, &facts);
            for operation in Operation::ALL {
                let verdict = |policy: &Policy| policy.decide(&facts, operation, &caller).verdict;
                assert_eq!(verdict(&both), verdict(&one).max(verdict(&other)));
            }
        }
    }
}

fn ask(policy: &Policy, facts: &Facts<'_>) {
    let known = CallerFacts { uid: 1000, gid: 100, exe: Some(b"/usr/bin/node") };
    let unknown = CallerFacts { exe: None, ..known };
    let hidden = policy.hidden(facts.path, facts.kind);
    // What is native is not asked about, so no rule may have anything against it.
    let native = policy.native().iter().any(|directory| lies_in(facts.path, &directory.path));
    for operation in Operation::ALL {
        let decision = policy.decide(facts, operation, &known);
        let doubtful = policy.decide(facts, operation, &unknown);
        assert!(
            decision.verdict <= doubtful.verdict,
            "what is not known counts against the caller"
        );
        assert_eq!(decision.verdict == Verdict::Hide, hidden.is_some());
        assert!(!native || doubtful.verdict == Verdict::Allow);
        let made = |caller| policy.decide_made(facts, operation, caller).verdict;
        let other = CallerFacts { exe: Some(b"/bin/sh"), ..known };
        let strictest = made(&unknown);
        assert!(made(&known) <= strictest && made(&other) <= strictest, "nor of links");
    }
    assert!(!policy.weakens(facts, facts));
    assert!(policy.subtree_move_is_neutral(facts.path, facts.path));
    assert!(!policy.explain(facts, None, &known).to_string().is_empty());
}

fn lies_in(path: &[u8], directory: &str) -> bool {
    let rest = path.strip_prefix(directory.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Rules that are whole, so that policies made of them are read.
    const RULES: [&str; 9] = [
        "[[rule]]\npath='**/.env'\naction='hide'\n",
        "[[rule]]\npath='**/.env'\naction='passthrough'\n",
        "[[rule]]\npath='x/**'\naction='deny'\n",
        "[[rule]]\npath='x/**'\nexe='/usr/bin/*'\naction='passthrough'\n",
        "[[rule]]\npath='a'\naction='userspace'\n",
        "[[rule]]\npath='**'\noperation='write'\naction='read-only'\n",
        "[[rule]]\npath='x'\naction='native'\n",
        "[[rule]]\npath='x/a'\nuid=1000\naction='deny'\n",
        "[[rule]]\npath='**'\nexe='/usr/bin/*'\naction='passthrough'\n",
    ];

    #[test]
    fn who_is_not_known_makes_no_link_that_somebody_may_not() {
        let symlinks = "[[rule]]\npath='**'\nkind='symlink'\naction='passthrough'\n";
        for first in ["", symlinks] {
            super::fuzz_one(format!("{first}{}{}\0x", RULES[8], RULES[7]).as_bytes());
        }
    }

    proptest! {
        #[test]
        fn no_input_contradicts_itself(
            lines in prop::collection::vec(prop::sample::select(vec![
                "[[rule]]\n", "path='**'\n", "path=['a','src/*.rs']\n", "action='deny'\n", "action='native'\n",
                "path=['a','x']\n", "create=true\n", "uid=1000\n",
                "action='hide'\n", "action='userspace'\n", "exe='/usr/bin/*'\n", "default='deny'\n",
                "content={regex='=$'}\n", "action='read-only'\n", "operation='write'\n", "\0", "x/a\n", "//\n",
            ]), 0..12),
            noise in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let mut data = lines.concat().into_bytes();
            data.extend(noise);
            super::fuzz_one(&data);
        }

        #[test]
        fn two_policies_are_as_strict_as_the_stricter(
            one in prop::collection::vec(prop::sample::select(RULES.to_vec()), 0..4),
            other in prop::collection::vec(prop::sample::select(RULES.to_vec()), 0..4),
        ) {
            let text = format!("{}{}{}\0a\nx\nx/a\n.env\nx/y/.env", one.concat(), super::AND, other.concat());
            super::fuzz_one(text.as_bytes());
        }

        #[test]
        fn a_rule_and_any_paths(path in "[ab*/?.\\[\\]{},\\\\é-]{1,12}", names in "[ab/.\\n]{0,12}") {
            super::fuzz_one(format!("[[rule]]\npath='{path}'\naction='hide'\n\0{names}").as_bytes());
            super::fuzz_one(format!("[[rule]]\npath='{path}'\nexe='/*/node'\naction='deny'\n\0{names}").as_bytes());
        }
    }
}
