//! Many files: more than descriptors, more than should stay in memory.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

const DIRS: usize = 60;
const FILES_PER_DIR: usize = 1000;
const DESCRIPTORS: &str = "1024";
/// How much more memory the server may keep than before, once everything is forgotten.
const MAX_GROWTH_KIB: u64 = 5 << 10;

fn make_tree(root: &Path) {
    for dir in 0..DIRS {
        let dir = root.join(format!("dir {dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..FILES_PER_DIR {
            fs::write(dir.join(format!("file {file}")), file.to_string()).unwrap();
        }
    }
}

/// Reads every file, and returns how many there were.
fn read_tree(root: &Path) -> usize {
    let mut count = 0;
    for dir in fs::read_dir(root).unwrap().map(Result::unwrap) {
        for file in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            let text = fs::read_to_string(file.path()).unwrap();
            assert_eq!(file.file_name().to_str(), Some(&*format!("file {text}")));
            count += 1;
        }
    }
    count
}

/// 60,000 files are walked and read with 1,024 descriptors, then removed: nothing fails, and what
/// the kernel has forgotten the server has forgotten too.
#[test]
fn more_files_than_descriptors() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &["--max-descriptors", DESCRIPTORS]);
    fs::create_dir(lower.path().join("tree")).unwrap();
    make_tree(&lower.path().join("tree"));
    // Once round with a few files, so that what is made at first use is there.
    fs::read_to_string(view.at("tree/dir 0/file 0")).unwrap();
    let before = view.resident_kib();
    assert_eq!(read_tree(&view.at("tree")), DIRS * FILES_PER_DIR);
    let (full, nodes) = (view.resident_kib(), view.status("nodes"));
    let used = view.status("descriptors_used");
    assert!(used <= 1024, "{used} descriptors");
    fs::remove_dir_all(view.at("tree")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while view.status("nodes") > 1 {
        assert!(Instant::now() < deadline, "{} nodes are not forgotten", view.status("nodes"));
        std::thread::sleep(Duration::from_millis(20));
    }
    // Memory is given back a little later.
    while view.resident_kib() > before + MAX_GROWTH_KIB && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = view.resident_kib();
    println!("resident: {before} KiB before, {full} KiB with {nodes} nodes, {after} KiB after");
    assert!(after <= before + MAX_GROWTH_KIB, "{before} KiB before, {after} KiB after");
}
