//! What the fuzz targets do with one input, apart from libFuzzer: the stored inputs run with any
//! compiler.

pub mod decode;
pub mod topology;

/// A target: its name, and what it does with one input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. To add one: its line here, a file in `fuzz_targets/`, its `[[bin]]`, its seeds.
pub const TARGETS: [Target; 4] = [
    ("control", tollgate_control::fuzzing::fuzz_one),
    ("decode", decode::fuzz_one),
    ("policy", tollgate_policy::fuzzing::fuzz_one),
    ("topology", topology::fuzz_one),
];
