use super::*;
use crate::plan::Cell;
use crate::region::{Prefault, Region};

fn quick() -> TuneOptions {
    TuneOptions { rounds: 2, working_set_bytes: Some(16 << 20), ..TuneOptions::uncached() }
}

#[test]
fn measuring_fills_every_row_and_chooses_the_fastest_median() {
    let tuning = explain(&quick()).unwrap();
    for row in Cell::ALL.map(Cell::name).into_iter().chain(["copy-cold", "copy-hot", "touch"]) {
        let samples: Vec<&Sample> = tuning.samples.iter().filter(|s| s.row == row).collect();
        let chosen: Vec<&&Sample> = samples.iter().filter(|sample| sample.chosen).collect();
        assert_eq!(chosen.len(), 1, "{row}");
        assert!(samples.iter().all(|sample| sample.median_ns >= chosen[0].median_ns), "{row}");
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
        (text.replace("version 1", "version 0"), "another version"),
        (text.replace("cold = ", "cold = sideways"), "is not a store kind"),
        ("x".repeat(70_000), "70000 bytes"),
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
fn the_working_set_is_four_caches_where_memory_allows() {
    let options = TuneOptions { rounds: 1, ..TuneOptions::uncached() };
    let tuning = explain(&options).unwrap();
    let enough = tuning.working_set_bytes >= 4 * tuning.plan.llc_bytes();
    assert!(enough || tuning.notes.iter().any(|note| note.contains("may be wrong")));
    // What it took was given back: another region of the size can be had.
    Region::options(tuning.working_set_bytes).prefault(Prefault::Lazy).map().unwrap();
}
