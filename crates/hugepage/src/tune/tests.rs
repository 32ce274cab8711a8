use super::*;
use crate::machine::Machine;
use crate::plan::Cell;
use crate::region::{Prefault, Region};

fn quick() -> TuneOptions {
    TuneOptions { rounds: 2, working_set_bytes: Some(16 << 20), ..TuneOptions::uncached() }
}

#[test]
fn measuring_fills_every_row_and_chooses_one_engine() {
    let tuning = explain(&quick()).unwrap();
    for row in Cell::ALL.map(Cell::name).into_iter().chain(["copy-cold", "copy-hot", "touch"]) {
        let samples: Vec<&Sample> = tuning.samples.iter().filter(|s| s.row == row).collect();
        let chosen: Vec<&&Sample> = samples.iter().filter(|sample| sample.chosen).collect();
        assert_eq!(chosen.len(), 1, "{row}");
        // That it is the plainest of the fastest is tested where they are judged.
        let line = format!("{row} = {}", chosen[0].engine);
        assert!(row == "touch" || tuning.plan.to_string().contains(&line), "{line}");
    }
    let text = tuning.to_string();
    assert!(text.contains("measured on 16 MiB in") && text.contains("note: measured on"), "{text}");
}

#[test]
fn a_kept_plan_is_taken_and_a_strange_one_is_measured_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/clear-plan");
    let options = TuneOptions { cache_file: Some(path.clone()), ..quick() };
    assert_eq!(tuned(&options).unwrap().origin, Origin::Measured);
    let kept = tuned(&options).unwrap();
    assert_eq!(kept.origin, Origin::Cached(path.clone()));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("microcode=") || cfg!(not(target_arch = "x86_64")), "{text}");
    assert!(text.ends_with(&kept.plan.to_string()));
    let key = text.lines().nth(1).unwrap();
    let strange = [
        (text.replace(key, "# another processor"), "another processor or microcode"),
        (text.replace("version 2", "version 1"), "another version"),
        (text.replace("cold = ", "cold = sideways"), "is not a store kind"),
        ("x".repeat(70_000), "longer than 65536 bytes"),
    ];
    for (text, why) in strange {
        std::fs::write(&path, text).unwrap();
        let tuning = tuned(&options).unwrap();
        assert_eq!(tuning.origin, Origin::Measured);
        assert!(tuning.notes[0].contains(why), "{:?}", tuning.notes);
    }
    assert_eq!(tuned(&options).unwrap().origin, Origin::Cached(path));
}

#[test]
fn overrides_hold_over_cache_and_measurement() {
    let overrides = Some("cold = plain reverse 16K".into());
    let tuning = tuned(&TuneOptions { overrides, ..quick() }).unwrap();
    assert_eq!(tuning.plan.at(Cell::Cold).spec().to_string(), "plain reverse 16K");
    let overrides = Some("cold = plain diagonal".into());
    assert!(tuned(&TuneOptions { overrides, ..quick() }).is_err());
}

#[test]
fn a_file_that_cannot_be_written_is_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clear-plan");
    std::fs::create_dir_all(path.join("in-the-way")).unwrap();
    let tuning = tuned(&TuneOptions { cache_file: Some(path), ..quick() }).unwrap();
    assert!(tuning.notes.iter().any(|note| note.contains("was not kept in")), "{:?}", tuning.notes);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
}

#[test]
fn the_working_set_is_four_caches_where_memory_and_time_allow() {
    let options = TuneOptions { rounds: 1, ..TuneOptions::uncached() };
    let tuning = explain(&options).unwrap();
    let usable = options.machine.usable_llc_bytes().unwrap_or(tuning.plan.llc_bytes());
    let enough = tuning.working_set_bytes >= 4 * usable;
    assert!(enough || tuning.notes.iter().any(|note| note.contains("may be wrong")));
    // What it took was given back: another region of the size can be had.
    Region::options(tuning.working_set_bytes).prefault(Prefault::Lazy).map().unwrap();
}

/// A machine with two CPUs of a processor on which many share an enormous cache.
fn a_small_guest_on_a_large_processor(root: &std::path::Path, sharers: usize) -> Machine {
    for cpu in 0..2 {
        let cache = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index0"));
        std::fs::create_dir_all(&cache).unwrap();
        for (file, text) in [("level", "3"), ("shared_cpu_list", "0-1"), ("size", "491520K")] {
            std::fs::write(cache.join(file), text).unwrap();
        }
    }
    std::fs::write(root.join("sys/devices/system/cpu/online"), "0-1").unwrap();
    Machine::at(root).with_llc_sharers(sharers)
}

#[test]
fn a_cache_that_belongs_to_the_neighbours_is_not_filled_four_times() {
    let root = tempfile::tempdir().unwrap();
    let machine = a_small_guest_on_a_large_processor(root.path(), 240);
    assert_eq!(machine.usable_llc_bytes(), Some(4 << 20));
    let options = TuneOptions { rounds: 1, machine, ..TuneOptions::uncached() };
    let tuning = explain(&options).unwrap();
    assert!(tuning.working_set_bytes <= 128 << 20, "{} bytes", tuning.working_set_bytes);
    assert!(!tuning.notes.iter().any(|note| note.contains("of cache")), "{:?}", tuning.notes);
    // Were it theirs alone, the working set would be too small, and said to be.
    let machine = a_small_guest_on_a_large_processor(root.path(), 2);
    let tuning = explain(&TuneOptions { machine, ..options }).unwrap();
    assert!(tuning.working_set_bytes <= 512 << 20, "{} bytes", tuning.working_set_bytes);
    assert!(tuning.notes.iter().any(|note| note.contains("of cache")), "{:?}", tuning.notes);
}

#[test]
fn a_doubtful_plan_is_kept_with_its_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clear-plan");
    let options = TuneOptions { cache_file: Some(path), ..quick() };
    let measured = tuned(&options).unwrap();
    assert!(measured.notes.iter().any(|note| note.contains("may be wrong")));
    let kept = tuned(&options).unwrap();
    assert!(matches!(kept.origin, Origin::Cached(_)));
    for note in &measured.notes {
        assert!(kept.notes.iter().any(|other| other.contains(note)), "{:?}", kept.notes);
    }
}

#[test]
fn a_file_that_others_may_have_prepared_is_not_used() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clear-plan");
    let options = TuneOptions { cache_file: Some(path.clone()), ..quick() };
    tuned(&options).unwrap();
    let good = dir.path().join("good");
    let replace = |prepare: &dyn Fn()| {
        let _ = std::fs::remove_file(&path);
        prepare();
        let tuning = tuned(&options).unwrap();
        assert_eq!(tuning.origin, Origin::Measured);
        tuning.notes
    };
    std::fs::copy(&path, &good).unwrap();
    let notes = replace(&|| symlink(&good, &path).unwrap());
    assert!(notes[0].contains("is a symbolic link"), "{notes:?}");
    let notes = replace(&|| {
        std::fs::copy(&good, &path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    });
    assert!(notes[0].contains("others may write to it (mode 666)"), "{notes:?}");
    // A FIFO without a writer: to open it as a file would wait for ever.
    let notes = replace(&|| {
        let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
    });
    assert!(notes[0].contains("is not a regular file"), "{notes:?}");
    let owner =
        std::fs::metadata(dir.path()).map(|facts| std::os::unix::fs::MetadataExt::uid(&facts));
    if owner.unwrap() == 0 {
        let notes = replace(&|| {
            std::fs::copy(&good, &path).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
        });
        // Root may not be told what to do by user 12345.
        assert!(notes[0].contains("it belongs to user 12345"), "{notes:?}");
    }
    // Each time a good one took its place, which nobody else can write.
    assert!(matches!(tuned(&options).unwrap().origin, Origin::Cached(_)));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}
