//! The stored inputs of every target, run once each, with any compiler and without libFuzzer.

use std::path::Path;

#[test]
fn stored_inputs_hold() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (name, fuzz_one) in tollgate_fuzz::TARGETS {
        let directory = seeds.join(name);
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut count = 0;
        for entry in entries {
            let path = entry.expect("a readable directory").path();
            // On a failure, the test's captured output ends with the input's name.
            println!("{}", path.display());
            fuzz_one(&std::fs::read(&path).expect("a readable file"));
            count += 1;
        }
        assert!(count > 0, "{} is empty", directory.display());
    }
}
