//! One run of the fuzz target: a request out of arbitrary bytes in arbitrary pieces.

use crate::request::{Malformed, REQUEST_MAX_BYTES, RequestReader};

/// Reads `data[1..]` as a request, in pieces whose length the first byte gives, and compares the
/// result with what the whole input means.
///
/// # Panics
/// If the result depends on the pieces, or is wrong.
pub fn fuzz_one(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let mut reader = RequestReader::default();
    let in_pieces = data.chunks(usize::from(first) + 1).find_map(|piece| reader.push(piece));
    assert_eq!(in_pieces.or_else(|| reader.end()), meaning(data));
}

fn meaning(data: &[u8]) -> Option<Result<String, Malformed>> {
    let newline = data.iter().position(|&byte| byte == b'\n');
    let line = &data[..newline.unwrap_or(data.len())];
    if line.len() > REQUEST_MAX_BYTES {
        return Some(Err(Malformed::TooLong));
    }
    if newline.is_none() && line.is_empty() {
        return None;
    }
    Some(std::str::from_utf8(line).map(str::to_owned).map_err(|_| Malformed::NotUtf8))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_do_not_change_the_meaning(
            first in any::<u8>(),
            line in prop::collection::vec(any::<u8>(), 0..40),
            filling in prop::sample::select(vec![0, 1, 4050, 4080, 4096, 4097, 5000]),
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let filling = vec![b'x'; filling];
            super::fuzz_one(&[&[first], &line[..], &filling, &rest, b"\n"].concat());
            super::fuzz_one(&[&[first], &filling[..], &line, &rest].concat());
        }
    }
}
