//! What the fuzz targets do with one input, apart from libFuzzer: the stored inputs run with any
//! compiler.

pub mod audit;
pub mod broker;
pub mod decode;
pub mod follow;
pub mod topology;

/// A target: its name, and what it does with one input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. To add one: its line here, a file in `fuzz_targets/`, its `[[bin]]`, its seeds.
pub const TARGETS: [Target; 10] = [
    ("audit", audit::fuzz_one),
    ("broker", broker::fuzz_one),
    ("control", tollgate_control::fuzzing::fuzz_one),
    ("decode", decode::fuzz_one),
    ("follow", follow::fuzz_one),
    ("policy", tollgate_policy::fuzzing::fuzz_one),
    ("redact", tollgate_redact::fuzzing::fuzz_one),
    ("redact_pieces", tollgate_redact::fuzzing::fuzz_pieces),
    ("seal", tollgate_seal::fuzzing::fuzz_one),
    ("topology", topology::fuzz_one),
];
