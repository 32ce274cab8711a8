//! See `tollgate_fuzz::audit::fuzz_one`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::audit::fuzz_one(input));
