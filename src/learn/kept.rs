//! What was refused stays so also where something above it was allowed: a glob covers all below.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::allowed::{self, Allowed};
use super::seen::Seen;
use super::text::{list, rule_of};
use super::{names, seen};

/// Globs by operations.
type Globs = BTreeMap<u8, BTreeSet<String>>;

/// Appends the rules to `text`, the policy as far as it is written.
pub(super) fn add(seen: &Seen, allowed: &Allowed, text: &mut String) -> anyhow::Result<()> {
    let mut whole = Globs::new();
    let mut alone = BTreeMap::new();
    for (path, operations) in &seen.kept {
        let names = [path.as_str()].into_iter();
        for name in allowed::under_all_names(names, &[&seen.moved, &seen.linked])? {
            let (at, itself) = seen.kept_at(&name, *operations & allowed.on(&name, true));
            if at != 0 && !name.is_empty() {
                whole.entry(at).or_default().insert(names::literal(&name));
            }
            if itself != 0 && !name.is_empty() {
                *alone.entry(name).or_default() |= itself;
            }
        }
    }
    if !whole.is_empty() {
        text.push_str("\n# Refused, though what is above it was allowed.\n");
    }
    for (operations, globs) in whole {
        let words = seen::words(operations);
        rule_of(&format!("refused: {}", words.join(", ")), &globs, text);
        text.push_str(&format!("operation = {}\naction = \"deny\"\n", list(&words)));
    }
    directories(&alone, allowed, text);
    Ok(())
}

/// Where it was granted below a directory, it is refused to directories alone, and those in it that had it
/// come before. No rule of one depth is about what another one of that depth covers.
fn directories(refused: &BTreeMap<String, u8>, allowed: &Allowed, text: &mut String) {
    let depth = |path: &str| Reverse(path.split('/').count());
    let mut rules = BTreeMap::<_, [Globs; 2]>::new();
    for (path, operations) in refused {
        let mut insert = |at: &str, glob: String, is_granted: bool, operations: u8| {
            if operations != 0 {
                let globs = &mut rules.entry(depth(at)).or_default()[usize::from(is_granted)];
                globs.entry(operations).or_default().insert(glob);
            }
        };
        insert(path, names::literal(path), false, *operations);
        for (below, reach, granted) in allowed.below(path) {
            insert(below, reach.glob(below), true, granted & operations);
        }
    }
    if !rules.is_empty() {
        text.push_str(
            "\n# Refused to directories, though what is above and below them was allowed.\n",
        );
    }
    for (Reverse(depth), [denied, granted]) in rules {
        for (globs, name, action) in
            [(denied, "refused", "deny"), (granted, "below", "passthrough")]
        {
            for (operations, globs) in globs {
                let words = seen::words(operations);
                let name = format!("{name} directories {depth}: {}", words.join(", "));
                rule_of(&name, &globs, text);
                let words = list(&words);
                text.push_str(&format!(
                    "kind = \"directory\"\noperation = {words}\naction = \"{action}\"\n"
                ));
            }
        }
    }
}
