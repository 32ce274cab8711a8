//! See `tollgate_seal::fuzzing::fuzz_one`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_seal::fuzzing::fuzz_one(input));
