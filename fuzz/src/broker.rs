//! Any bytes as a message of the broker's protocol, from either side.

use tollgate_broker::{MESSAGE_BYTES, Refusal, Request, VERSION, decode_reply, encode_reply};

/// What is read is written back as the same bytes, and what is not of this version and length is
/// refused.
///
/// # Panics
/// If it is not so.
pub fn fuzz_one(input: &[u8]) {
    let request = Request::decode(input);
    let reply = decode_reply(input);
    match request {
        Ok(request) => assert_eq!(request.encode(), *input),
        Err(Refusal::Version(version)) => {
            assert_eq!(version, VERSION);
            assert!(input.len() >= 8 && input[4..6] != VERSION.to_le_bytes());
        }
        Err(refusal) => assert_eq!(refusal, Refusal::Malformed),
    }
    match reply {
        Ok(reply) => assert_eq!(encode_reply(reply), *input),
        Err(refusal) => {
            assert!(matches!(refusal, Refusal::Malformed | Refusal::Version(_)));
        }
    }
    let fits = input.len() == MESSAGE_BYTES && input.starts_with(b"TGbk");
    assert!(fits || (request.is_err() && reply.is_err()));
}
