//! One run of the fuzz target: any bytes, masked at once and in parts.

use crate::{Detector, Detectors, OwnRegex, Redactor};

/// Masks `data` as a whole, then range by range, and checks that each range is the same. The first
/// two bytes choose the detectors and the ranges.
///
/// # Panics
/// If a range differs, or something other than the length stays not the same.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, text @ ..] = data else { return };
    let named = Detector::ALL.into_iter().enumerate();
    let named: Vec<_> = named.filter(|(bit, _)| choice >> bit & 1 == 0).map(|(_, d)| d).collect();
    let mut detectors = Detectors::only(&named);
    if choice & 0x80 != 0 {
        let own = OwnRegex::new("own", r"(?i)\bid-[a-f0-9]{2,40}\b|^x.{1,20}$").expect("bounded");
        detectors = detectors.and_own(own);
    }
    // Long texts out of short inputs: what matters is what lies far from a range.
    let text = text.repeat(1 + usize::from(cut & 7) * 20_000 / text.len().max(1));
    check(&Redactor::new(detectors), &text, usize::from(*cut) * 37 + 1);
}

fn check(redactor: &Redactor, text: &[u8], step: usize) {
    let mut whole = text.to_vec();
    redactor.mask_all(&mut whole, |found| {
        assert!(found.bytes.start < found.bytes.end && found.bytes.end <= text.len());
    });
    assert_eq!(whole.len(), text.len());
    for (masked, plain) in whole.iter().zip(text) {
        assert!(masked == plain || *masked == crate::MASK);
    }
    let size = text.len() as u64;
    // A few ranges are enough for long texts.
    let starts = (0..size).step_by(step.max(text.len() / 6));
    for start in starts {
        let range = start..size.min(start + step as u64);
        let read = redactor.to_read(range.clone(), size).expect("small");
        let place = |at: u64| usize::try_from(at).expect("small");
        let mut buffer = text[place(read.start)..place(read.end)].to_vec();
        let masked =
            redactor.mask_range(&mut buffer, read.start, read.end == size, range.clone(), |_| {});
        masked.expect("what was asked for was read");
        let part = place(range.start - read.start)..place(range.end - read.start);
        let expected = &whole[place(range.start)..place(range.end)];
        assert!(buffer[part] == *expected, "{range:?} differs");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    const PIECES: [&str; 26] = [
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "MIIEpAIBAAKCAQEAx0+/synthetic/only/AAAAaaaa0000bbbbCCCC11112222\n",
        "-----END RSA PRIVATE KEY-----\n",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n",
        "Private-Lines: 3\n",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345 ",
        "AKIAABCDEFGHIJKLMNOP ",
        "https://user:pass9word@host/",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln ",
        "eyJ",
        "4111 1111 1111 1111",
        "411111111111",
        "1111 ",
        "password = \"",
        "hunter2!A\" ",
        "TOKEN=abcd1234efgh\n",
        "A=\"",
        "'",
        "\n",
        "# x=y\n",
        "id-beef00 ",
        "xyz\n",
        "aA0_",
        ".",
        "\\n",
        " ",
    ];

    proptest! {
        #[test]
        fn a_range_is_masked_as_the_whole_is(
            choice in any::<u8>(), cut in any::<u8>(),
            pieces in prop::collection::vec((prop::sample::select(PIECES.to_vec()), prop_oneof![9 => 1..3_usize, 1 => 200..3000_usize]), 1..12),
        ) {
            let mut data = vec![choice, cut & !7];
            for (piece, count) in pieces {
                data.extend(piece.repeat(count).as_bytes());
            }
            super::fuzz_one(&data);
        }

        #[test]
        fn any_bytes_are_masked(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::fuzz_one(&data);
        }
    }
}
