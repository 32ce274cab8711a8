//! Repositories in DIR that somebody made to be looked into: what the presets say, and what it takes.

use std::process::Command;

use super::{Answer, Place};

/// A section may have a name of half a mebibyte, and each of its settings is in it.
#[test]
fn settings_in_a_section_with_a_long_name_take_little_memory() {
    let place = Place::new();
    let name = "x".repeat(1 << 19);
    std::fs::create_dir_all(place.path("dir/sub/.git/objects")).unwrap();
    place.write("dir/sub/.git/HEAD", "x");
    let keys = (0..60_000).map(|number| format!("k{number}=x\n")).collect::<String>();
    for section in ["user", "pager"] {
        let config = format!("[{section} \"{name}\"]\n{}", &keys[..500_000]);
        place.write("dir/sub/.git/config", &config);
        for arguments in
            [&["explain", "--policy", "agent", "x"][..], &["check", "--dir", ".", "none"]]
        {
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"]);
            limited.arg(env!("CARGO_BIN_EXE_tollgate")).args(arguments);
            let answer = Answer(limited.current_dir(place.path("dir")).output().unwrap());
            assert_eq!(answer.code(), 0, "{section}: {:?} {}", answer.0.status, answer.err());
        }
    }
}
