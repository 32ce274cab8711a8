//! One run of the fuzz target: a policy and some paths out of arbitrary bytes.

use crate::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

/// Reads `data` as a policy, a NUL, and paths one per line; asks every question and checks that the
/// answers agree.
///
/// # Panics
/// If two answers contradict each other.
pub fn fuzz_one(data: &[u8]) {
    let (text, paths) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &b"a\nsrc/main.rs\n.env\nx/id_rsa"[..]),
    };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let policy = match Policy::parse(text, "fuzz.toml") {
        Ok(policy) => policy,
        Err(error) => {
            assert!(error.line() >= 1 && error.column() >= 1);
            assert!(error.to_string().starts_with("fuzz.toml:"));
            return;
        }
    };
    policy.warnings().iter().for_each(|warning| assert!(!warning.to_string().is_empty()));
    for path in paths.split(|byte| *byte == b'\n').take(8) {
        for kind in [Kind::File, Kind::Directory] {
            ask(&policy, &Facts { path, kind, size: 7, head: Some(b"\x7fELF a=") });
            ask(&policy, &Facts { path, kind, size: 7, head: None });
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
        fn a_rule_and_any_paths(path in "[ab*/?.\\[\\]{},\\\\é-]{1,12}", names in "[ab/.\\n]{0,12}") {
            super::fuzz_one(format!("[[rule]]\npath='{path}'\naction='hide'\n\0{names}").as_bytes());
            super::fuzz_one(format!("[[rule]]\npath='{path}'\nexe='/*/node'\naction='deny'\n\0{names}").as_bytes());
        }
    }
}
