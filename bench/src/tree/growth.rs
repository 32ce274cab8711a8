//! How the cost per file grows with the number of files.

use std::process::Command;

use anyhow::Result;

use super::site::Site;
use super::walk::mount_afresh;
use crate::harness::{Better, Options, Report, Row};
use crate::programs::timed_ms;
use crate::project::NEEDLE;

/// Files of the trees.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

/// Measures `find`, `find` again and `grep -r` over trees of growing size, in microseconds per
/// file.
pub(super) fn run(site: &mut Site, options: &Options, report: &mut Report) -> Result<()> {
    report.section("growth: time per file");
    for files in SIZES.into_iter().take(options.pick(SIZES.len(), 2)) {
        let row = |name: &str| {
            let name = format!("growth, {files} files: {name}");
            Row::new(&name, "us/file", Better::Lower).warm_up()
        };
        let rows = ["find", "find again", "grep -r"].map(row);
        if !rows.iter().any(|row| report.wants(row)) {
            continue;
        }
        let tree = site.shared_tree(files)?;
        let columns = site.columns();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        report.measure_many(&rows, &columns, |_, column| {
            let place = &mut site.places_mut()[column];
            mount_afresh(place)?;
            let root = place.root.join(&tree);
            let per_file = |program: &str, arguments: &[&str]| -> Result<f64> {
                let mut command = Command::new(program);
                let (ms, _) = timed_ms(command.args(arguments).current_dir(&root))?;
                Ok(ms * 1000.0 / files as f64)
            };
            let find = || per_file("find", &[".", "-type", "f", "-size", "+0"]);
            Ok(vec![find()?, find()?, per_file("grep", &["-r", NEEDLE, "."])?])
        })?;
    }
    Ok(())
}
