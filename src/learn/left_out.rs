//! Comments that name what the proposed policy does not allow, and why.

use crate::escape::escaped;
use crate::messages;

use super::seen::{self, Seen};

/// Most lines under one heading.
const MAX_LINES: usize = 50;

/// Appends them to `text`, the policy as far as it is written.
pub(super) fn add(seen: &Seen, text: &mut String) {
    let refused = seen.refused.iter().map(|((path, operation, rule), count)| {
        format!("{} {path}: {}, by {}", escaped(operation), times(*count), escaped(rule))
    });
    section("#\n# Refused, or to be refused, and so left out:\n", refused, text);
    let made = seen.made.iter().map(|((path, word, rule), count)| {
        format!("{word} {path}: {}, by {}", times(*count), escaped(rule))
    });
    section(
        "# Masked or sealed, and so left out: how is not recorded. To allow it, write the rules that\n\
         # were in force before those below:\n",
        made,
        text,
    );
    // So that the reader can have it.
    let both = seen.both.iter().map(|(path, operations)| {
        format!("{} of {}", seen::words(*operations).join(", "), escaped(path))
    });
    section(
        "# Granted at one time and refused at another, and so left out. To allow it all the same,\n\
         # write a rule for it before those below:\n",
        both,
        text,
    );
    // The strictest name of a file decides, also one that no record has.
    let named = seen.with_further_names();
    section(
        "# Of these files not all names in DIR (hard links) are allowed, which they would have to be:\n",
        named.iter().map(|path| escaped(path)),
        text,
    );
}

fn times(count: u64) -> String {
    messages::count(usize::try_from(count).unwrap_or(usize::MAX), "time")
}

/// Nothing where there are no `lines`.
fn section(heading: &str, lines: impl ExactSizeIterator<Item = String>, text: &mut String) {
    if lines.len() == 0 {
        return;
    }
    let more = lines.len().saturating_sub(MAX_LINES);
    text.push_str(heading);
    for line in lines.take(MAX_LINES) {
        text.push_str(&format!("#   {line}\n"));
    }
    if more > 0 {
        text.push_str(&format!("#   and {more} more\n"));
    }
    text.push_str("#\n");
}
