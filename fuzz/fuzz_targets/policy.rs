//! Any text as a policy, and decisions under it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tollgate_policy::fuzzing::fuzz_one(data));
