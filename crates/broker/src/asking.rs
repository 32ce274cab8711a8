//! The client's half of the messages: how a request is written, and a reply read.

use rustix::io::Errno;

use crate::protocol::{MESSAGE_BYTES, Refusal, Reply, Request, fields, message};

/// Where the broker listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/tollgate/broker.sock";

impl Request {
    /// The message.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (operation, argument) = match self {
            Self::Hello => (1, 0),
            Self::Register(cpu) => (2, cpu),
            Self::Close(id) => (3, id),
        };
        message(operation, argument)
    }
}

/// Reads a reply.
///
/// # Errors
/// [`Refusal::Version`] and [`Refusal::Malformed`], if it is none.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Refusal> {
    match fields(bytes)? {
        (0, value) => Ok(Ok(value)),
        (code, value) => refusal(code, value).map(Err).ok_or(Refusal::Malformed),
    }
}

fn refusal(code: u16, value: u32) -> Option<Refusal> {
    match code {
        1 => u16::try_from(value).ok().map(Refusal::Version),
        // Errors of the kernel are those below 4096.
        2 if (1..4096).contains(&value) => {
            Some(Refusal::Kernel(Errno::from_raw_os_error(value.cast_signed())))
        }
        _ => Refusal::ALL.iter().find(|refusal| refusal.code() == (code, value)).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{MAGIC, encode_reply};

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for request in [Request::Hello, Request::Register(3), Request::Close(u32::MAX)] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let bytes = *b"TGbk\x01\0\x03\0\x07\0\0\0\0\0\0\0";
        assert_eq!(Request::Close(7).encode(), bytes);
    }

    #[test]
    fn a_reply_arrives_as_it_was_sent() {
        let refusals = Refusal::ALL.iter().map(|refusal| Err(*refusal));
        for reply in refusals.chain([Ok(0), Ok(u32::MAX)]) {
            assert_eq!(decode_reply(&encode_reply(reply)), Ok(reply));
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let good = Request::Close(7).encode();
        for len in 0..MESSAGE_BYTES {
            assert_eq!(Request::decode(&good[..len]), Err(Refusal::Malformed), "{len} bytes");
        }
        let long = [&good[..], &[0]].concat();
        assert_eq!(Request::decode(&long), Err(Refusal::Malformed));
        // Magic, operation 0, the argument of an operation that has none, what is reserved.
        for (at, value) in [(0, b'X'), (6, 0), (6, 1), (6, 4), (7, 1), (12, 1), (15, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Request::decode(&bad), Err(Refusal::Malformed), "byte {at} is {value}");
        }
        assert_eq!(Request::decode(&message(3, 0)), Err(Refusal::Malformed));
    }

    #[test]
    fn another_version_is_told_apart_at_every_length() {
        let mut later = [0_u8; 40];
        later[..4].copy_from_slice(&MAGIC);
        later[4] = 2;
        for len in 8..later.len() {
            assert_eq!(Request::decode(&later[..len]), Err(Refusal::Version(2)));
            assert_eq!(decode_reply(&later[..len]), Err(Refusal::Version(2)));
        }
    }
}
