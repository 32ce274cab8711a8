//! `bench passthrough`: what a view costs over the bare directory, and against a peer.

pub mod peer;

mod bulk;
mod limits;
mod operations;
mod site;
mod tree;

use anyhow::Result;

use crate::harness::{Column, Options, Report, interrupt};
use site::{NATIVE, PEER, Site, TOLLGATE, USER_SPACE};

/// Runs the benchmark.
///
/// # Errors
/// If the files cannot be made, `tollgate` cannot be built, or an operation fails in a view.
pub fn run(options: &Options) -> Result<()> {
    let columns = [
        Column::new(NATIVE),
        Column::against(TOLLGATE, NATIVE),
        Column::against(USER_SPACE, NATIVE),
        Column::against(PEER, NATIVE),
    ];
    let mut report = Report::new("passthrough", options, &columns);
    let mut site = Site::new()?;
    let measured = measure(&mut site, options, &mut report);
    // Unmount before the table is printed: whoever reads it may well press Ctrl-C.
    drop(site);
    if interrupt::requested() {
        report.note("Interrupted: the rest was not measured.");
    }
    report.finish()?;
    measured
}

fn measure(site: &mut Site, options: &Options, report: &mut Report) -> Result<()> {
    eprintln!("making files ...");
    bulk::prepare(site, options)?;
    operations::prepare(site)?;
    tree::prepare(site, options)?;
    site.mount(report)?;
    bulk::run(site, options, report)?;
    operations::run(site, options, report)?;
    tree::run(site, options, report)?;
    limits::run(site, options, report)
}
