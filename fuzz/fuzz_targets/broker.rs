//! See `tollgate_fuzz::broker::fuzz_one`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::broker::fuzz_one(input));
