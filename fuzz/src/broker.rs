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
            assert!(version != VERSION && input[4..6] == version.to_le_bytes());
        }
        Err(refusal) => assert_eq!(refusal, Refusal::Malformed),
    }
    match reply {
        // The broker's own version, which it writes whatever it is asked to.
        Ok(Err(Refusal::Version(version))) => assert_eq!(input[8..12], u32::from(version).to_le_bytes()),
        Ok(reply) => assert_eq!(encode_reply(reply), *input),
        Err(refusal) => {
            assert!(matches!(refusal, Refusal::Malformed | Refusal::Version(_)));
        }
    }
    let fits = input.len() == MESSAGE_BYTES && input.starts_with(b"TGbk");
    assert!(fits || (request.is_err() && reply.is_err()));
}
