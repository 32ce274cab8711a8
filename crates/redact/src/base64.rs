//! Base64 of either alphabet.

/// What `text` encodes; nothing if it has other characters, such as padding. Bits that are left over at the end
/// are dropped.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut plain) = (0_u32, 0, Vec::with_capacity(text.len()));
    for byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xfff;
        count += 6;
        if count >= 8 {
            count -= 8;
            plain.push(u8::try_from(bits >> count & 0xff).expect("eight bits"));
        }
    }
    Some(plain)
}
