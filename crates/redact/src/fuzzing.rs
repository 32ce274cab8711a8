//! One run of the fuzz targets: any bytes, masked at once and in parts.

use std::ops::Range;

use crate::{Detector, Detectors, OwnRegex, Redactor};

/// Pieces that are read in one run of [`fuzz_pieces`].
const PIECES_MAX: usize = 300;

/// Masks `data` as a whole, then range by range, and checks that each range is the same. The first
/// two bytes choose the detectors and the ranges.
///
/// # Panics
/// If a range differs, or something other than the length stays not the same.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, text @ ..] = data else { return };
    // Long texts out of short inputs: what matters is what lies far from a range.
    let text = text.repeat(1 + usize::from(cut & 7) * 20_000 / text.len().max(1));
    let redactor = chosen(*choice);
    let whole = masked(&redactor, &text);
    // A few ranges are enough for long texts.
    let step = usize::from(*cut) * 37 + 1;
    for start in (0..text.len()).step_by(step.max(text.len() / 6)) {
        check(&redactor, &text, &whole, start..text.len().min(start + step));
    }
}

/// Reads the masked text one small piece after the other, as a program does whose buffer is small and
/// whose boundaries fall anywhere, also within a secret, and checks that the pieces are the whole. The
/// first bytes choose the detectors, how far in a long text the pieces begin, and how long each is.
///
/// # Panics
/// If a piece differs, or something other than the length stays not the same.
pub fn fuzz_pieces(data: &[u8]) {
    let [choice, far, count, rest @ ..] = data else { return };
    let (lengths, text) = rest.split_at(rest.len().min(1 + usize::from(*count) % 32));
    if text.is_empty() {
        return;
    }
    // The pieces lie at the end of as many repetitions as bring them so far from the beginning.
    let before = usize::from(*far) * 400 / text.len() * text.len();
    let text = text.repeat(before / text.len() + 1);
    let redactor = chosen(*choice);
    let whole = masked(&redactor, &text);
    let mut start = before;
    for length in lengths.iter().cycle().take(PIECES_MAX) {
        let end = text.len().min(start + 1 + usize::from(*length));
        check(&redactor, &text, &whole, start..end);
        start = end;
        if start == text.len() {
            return;
        }
    }
}

fn chosen(choice: u8) -> Redactor {
    let named = Detector::ALL.into_iter().enumerate();
    let named: Vec<_> = named.filter(|(bit, _)| choice >> bit & 1 == 0).map(|(_, d)| d).collect();
    let mut detectors = Detectors::only(&named);
    if choice & 0x80 != 0 {
        let own = OwnRegex::new("own", r"(?i)\bid-[a-f0-9]{2,40}\b|^x.{1,20}$").expect("bounded");
        detectors = detectors.and_own(own);
    }
    Redactor::new(detectors)
}

/// The whole text at once.
fn masked(redactor: &Redactor, text: &[u8]) -> Vec<u8> {
    let mut whole = text.to_vec();
    redactor.mask_all(&mut whole, |found| {
        assert!(found.bytes.start < found.bytes.end && found.bytes.end <= text.len());
    });
    assert_eq!(whole.len(), text.len());
    for (masked, plain) in whole.iter().zip(text) {
        assert!(masked == plain || *masked == crate::MASK);
    }
    whole
}

/// Masks a range with what a view reads around it, and compares it.
fn check(redactor: &Redactor, text: &[u8], whole: &[u8], range: Range<usize>) {
    let size = text.len() as u64;
    let asked = range.start as u64..range.end as u64;
    let read = redactor.to_read(asked.clone(), size).expect("small");
    let place = |at: u64| usize::try_from(at).expect("small");
    let mut buffer = text[place(read.start)..place(read.end)].to_vec();
    let done = redactor.mask_range(&mut buffer, read.start, read.end == size, asked, |_| {});
    done.expect("what was asked for was read");
    let part = range.start - place(read.start)..range.end - place(read.start);
    assert!(buffer[part] == whole[range.clone()], "{range:?} differs");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    const PIECES: [&str; 28] = [
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "MIIEpAIBAAKCAQEAx0+/synthetic/only/AAAAaaaa0000bbbbCCCC11112222\n",
        "-----END RSA PRIVATE KEY-----\n",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n",
        "Private-Lines: 3\n",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345 ",
        "AKIAABCDEFGHIJKLMNOP ",
        "https://user:pass9word@host/",
        "smtp://a@b:p9@x,w0rd@host",
        "%20123456789:AAF3WDlQPFPA2bdgG-MN33X7TfS5biDm0VZ ",
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
        fn small_pieces_are_the_whole(
            head in (any::<u8>(), prop_oneof![3 => Just(0), 1 => any::<u8>()], any::<u8>()),
            lengths in prop::collection::vec(any::<u8>(), 32),
            pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 1..30),
        ) {
            let mut data = vec![head.0, head.1, head.2];
            data.extend(&lengths[..=usize::from(head.2) % 32]);
            pieces.iter().for_each(|piece| data.extend(piece.as_bytes()));
            super::fuzz_pieces(&data);
        }

        #[test]
        fn any_bytes_are_masked(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::fuzz_one(&data);
        }
    }
}
