//! Requests of any bytes: decoded or refused, never a panic or a read out of bounds. Each input is
//! decoded in one piece, with its length put right, and in the three pieces of io_uring.

use tollgate_fuse::{Dialect, Message, Operation};

const HEADER_BYTES: usize = 40;

/// One input.
pub fn fuzz_one(input: &[u8]) {
    let mut bytes = input.to_vec();
    check(Message::contiguous(&bytes));
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let len = u32::try_from(bytes.len()).expect("fuzzers' inputs are short");
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    check(Message::contiguous(&bytes));
    let (header, body) = bytes.split_at(HEADER_BYTES);
    let at = usize::from(header[38]).min(body.len());
    check(Message::split(header, &body[..at], &body[at..]));
}

fn check(message: Result<Message<'_>, tollgate_fuse::DecodeError>) {
    let message = match message {
        Ok(message) => message,
        Err(error) => {
            let _ = (error.to_string(), error.errno());
            return;
        }
    };
    let _ = message.supplementary_group();
    for setxattr_ext in [false, true] {
        match Operation::decode(&message, Dialect { setxattr_ext }) {
            Ok(Operation::BatchForget { forgets }) => drop(forgets.count()),
            Ok(Operation::Write(args)) => drop(args.data.to_vec()),
            Ok(operation) => drop(format!("{operation:?}")),
            Err(error) => drop(error.to_string()),
        }
    }
}
