//! See `tollgate_fuzz::decode::fuzz_one`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::decode::fuzz_one(input));
