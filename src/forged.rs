//! Room for replies that CMD of a `run` may have forged: they must not take the memory of who asks.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest reply of such a server, in bytes. Its `status` has a few thousand, `--requests` some 100,000.
pub(crate) const MAX_LEN: u64 = 1 << 20;
/// Most memory that all of them together may take, in bytes.
const MAX_MEMORY: usize = 64 << 20;
/// What a value takes in a list that has grown, a node of an object's members, and the bytes of a string, at most.
const PER_VALUE: usize = 64;
const PER_OBJECT: usize = 704;
const PER_QUOTE: usize = 16;

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Room(AtomicUsize);

impl Default for Room {
    fn default() -> Self {
        Self(AtomicUsize::new(MAX_MEMORY))
    }
}

impl Room {
    /// Whether this reply may be read as JSON, too.
    pub(crate) fn take(&self, reply: &str) -> bool {
        let needed = memory_of(reply);
        let take = |left: usize| left.checked_sub(needed);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// What a text takes as JSON, in bytes, at most.
fn memory_of(text: &str) -> usize {
    let per_byte = |byte: u8| match byte {
        b',' | b'[' => PER_VALUE,
        // Each node has room for eleven members, and half of them at least.
        b'{' => PER_OBJECT,
        b':' => 2 * PER_VALUE,
        b'"' => PER_QUOTE,
        _ => 0,
    };
    text.len() + text.bytes().map(per_byte).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_many_reports_and_not_for_many_numbers() {
        let report =
            format!(r#"{{"kind":"run","native":["a","b"],"text":"{}"}}"#, "x".repeat(8 << 10));
        let room = Room::default();
        assert!((0..1000).all(|_| room.take(&report)));
        for unit in ["0,", "[],", "{},", r#"{"":0},"#, r#""":0,"#] {
            let reply = unit.repeat((1 << 20) / unit.len());
            let room = Room::default();
            assert!((0..4).any(|_| !room.take(&reply)), "{unit}");
        }
    }
}
