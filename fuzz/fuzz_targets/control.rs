//! Any bytes, in any pieces, as a request to a control socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tollgate_control::fuzzing::fuzz_one(data));
