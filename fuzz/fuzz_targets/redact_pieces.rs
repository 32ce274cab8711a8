//! See `tollgate_redact::fuzzing::fuzz_pieces`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_redact::fuzzing::fuzz_pieces(input));
