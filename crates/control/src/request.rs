//! Requests: a line of text out of bytes that arrive in pieces.

/// The longest request in bytes, without its newline.
pub const REQUEST_MAX_BYTES: usize = 4096;

/// A request that no function can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a request longer than {REQUEST_MAX_BYTES} bytes")]
    TooLong,
    #[error("a request that is not UTF-8")]
    NotUtf8,
}

/// Collects the bytes of one request. Holds at most [`REQUEST_MAX_BYTES`] and one piece.
#[derive(Debug, Default)]
pub(crate) struct RequestReader {
    bytes: Vec<u8>,
}

impl RequestReader {
    /// Adds what arrived. Returns the request as soon as it is complete, or known to be malformed.
    /// Bytes after the newline are ignored.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Option<Result<String, Malformed>> {
        let newline = piece.iter().position(|&byte| byte == b'\n');
        self.bytes.extend_from_slice(&piece[..newline.unwrap_or(piece.len())]);
        if self.bytes.len() > REQUEST_MAX_BYTES {
            return Some(Err(Malformed::TooLong));
        }
        newline.map(|_| self.take())
    }

    /// The stream ended: what has come is the request. `None` when nothing has come.
    pub(crate) fn end(&mut self) -> Option<Result<String, Malformed>> {
        if self.bytes.is_empty() { None } else { Some(self.take()) }
    }

    fn take(&mut self) -> Result<String, Malformed> {
        String::from_utf8(std::mem::take(&mut self.bytes)).map_err(|_| Malformed::NotUtf8)
    }
}

/// A reply that says what is wrong: `{"error":"TEXT"}`, with TEXT escaped as JSON demands.
#[must_use]
pub fn error_reply(text: &str) -> String {
    use std::fmt::Write;
    let mut reply = String::from("{\"error\":\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => reply.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                // Writing to a `String` cannot fail.
                let _ = write!(reply, "\\u{:04x}", u32::from(c));
            }
            c => reply.push(c),
        }
    }
    reply.push_str("\"}");
    reply
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_request_is_taken_and_one_byte_more_is_not() {
        let longest = "x".repeat(REQUEST_MAX_BYTES);
        let line = format!("{longest}\n");
        assert_eq!(RequestReader::default().push(line.as_bytes()), Some(Ok(longest.clone())));
        let mut reader = RequestReader::default();
        assert_eq!(reader.push(longest.as_bytes()), None, "the newline may still come");
        assert_eq!(reader.push(b"y"), Some(Err(Malformed::TooLong)));
    }

    #[test]
    fn an_empty_line_is_a_request_and_an_empty_stream_is_none() {
        assert_eq!(RequestReader::default().push(b"\n"), Some(Ok(String::new())));
        assert_eq!(RequestReader::default().end(), None);
    }

    proptest! {
        #[test]
        fn an_error_reply_is_json_that_holds_the_text(text in any::<String>()) {
            let json: serde_json::Value = serde_json::from_str(&error_reply(&text)).unwrap();
            prop_assert_eq!(json, serde_json::json!({ "error": text }));
        }
    }
}
