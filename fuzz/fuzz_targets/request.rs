//! Any bytes as a request: decoded or refused, never a panic, in either dialect.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuse::{Dialect, Message, Operation};

fuzz_target!(|data: &[u8]| {
    for setxattr_ext in [false, true] {
        let Ok(message) = Message::contiguous(data) else { return };
        let _ = message.supplementary_group();
        if let Ok(Operation::BatchForget { forgets }) =
            Operation::decode(&message, Dialect { setxattr_ext })
        {
            forgets.for_each(drop);
        }
    }
});
