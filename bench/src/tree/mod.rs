//! `bench tree`: what a view costs where nearly every system call is a request: trees of small
//! files.
//!
//! Each column serves the same lower directory. Reading rows use one tree that all columns share,
//! so that its data is in the page cache for all of them or for none; writing rows have a directory
//! per column.

mod busy;
mod clients;
mod contestants;
mod growth;
mod idle;
mod operations;
mod options;
mod programs;
mod site;
mod user;
mod walk;

pub(crate) use clients::{CLIENT, client_command, run_client};
pub(crate) use options::TreeOptions;

use anyhow::Result;

use crate::harness::{Column, Options, Report, interrupt};
use contestants::BARE;
use options::Part;
use site::Site;

/// Runs the benchmark.
///
/// # Errors
/// If the files cannot be made, no server can be started, or an operation fails in a view.
pub(crate) fn run(options: &Options, tree: &TreeOptions) -> Result<()> {
    let mut notes = Vec::new();
    let contestants = contestants::select(tree, &mut notes)?;
    let columns: Vec<_> = contestants
        .iter()
        .map(|c| if c.name == BARE { Column::new(BARE) } else { Column::against(&c.name, BARE) })
        .collect();
    let mut report = Report::new("tree", options, &columns);
    let mut site = Site::new(tree.dir.as_deref(), contestants)?;
    report.note(site.describe()?);
    notes.into_iter().for_each(|note| report.note(note));
    let measured = measure(&mut site, options, tree, &mut report);
    // Unmount before the table is printed: whoever reads it may well press Ctrl-C.
    drop(site);
    if interrupt::requested() {
        report.note("Interrupted: the rest was not measured.");
    }
    report.finish()?;
    measured
}

fn measure(
    site: &mut Site,
    options: &Options,
    tree: &TreeOptions,
    report: &mut Report,
) -> Result<()> {
    let files = tree.files(options);
    site.mount(report);
    for part in tree.parts() {
        let aside = if part.has_users() { Vec::new() } else { site.put_aside_users() };
        match part {
            Part::Walk => walk::run(site, files, report)?,
            Part::Git => programs::git_status(site, options, report)?,
            Part::Compile => programs::compile(site, options, report)?,
            Part::Operations => operations::run(site, options, report)?,
            Part::Clients => clients::run(site, options, report)?,
            Part::Idle => idle::run(site, options, report)?,
            Part::Busy => busy::run(site, files, report)?,
            Part::Growth => growth::run(site, options, report)?,
            Part::Cargo => programs::cargo_build(site, tree, report)?,
            Part::Build => programs::build(site, tree, report)?,
        }
        site.put_back(aside);
    }
    Ok(())
}
