//! What a mount costs that nobody uses, and how soon it is quiet after it was used.

use std::fs::File;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use super::contestants::TOLLGATE;
use super::site::{Place, Site};
use crate::harness::{Better, Must, Options, Report, Row, interrupt};

const MIB: f64 = 1024.0 * 1024.0;
/// Opens of one burst.
const BURST: usize = 2_000;
/// By then a server must have come to rest.
const REST: Duration = Duration::from_millis(300);
/// Registrations of files that were closed are given back 1 to 2 s later, which is the end of their
/// use, not idleness.
const UNUSED: Duration = Duration::from_secs(3);

/// Measures all rows.
pub(super) fn run(site: &mut Site, options: &Options, report: &mut Report) -> Result<()> {
    let seconds = options.pick(10, 2);
    let memory = Row::new("idle mount: resident memory", "MiB", Better::Lower);
    let idle = Row::new(&format!("idle mount: CPU time in {seconds} s"), "ms", Better::Lower);
    let burst = Row::new("CPU time after the end of a burst", "ms", Better::Lower);
    report.section("idle");
    report.must(Must::at_most((memory.name(), TOLLGATE), 16.0).aim(10.0));
    report.must(Must::at_most((idle.name(), TOLLGATE), 0.0));
    report.must(Must::at_most((burst.name(), TOLLGATE), 1.0));
    std::fs::write(site.lower().join("opened"), "x")?;
    let mut servers: Vec<_> = site.places_mut().iter_mut().collect();
    servers.retain(|place| !place.contestant.is_bare());
    let names: Vec<_> = servers.iter().map(|place| place.name().to_owned()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    report.measure(&memory, &names, |_, column| {
        servers[column].remount(&[])?;
        std::fs::metadata(servers[column].root.join("opened"))?;
        sleep(REST);
        let server = servers[column].server().context("it was just mounted")?;
        Ok(server.resident_bytes()? as f64 / MIB)
    })?;
    report.measure(&burst, &names, |_, column| cpu_after_burst_ms(servers[column]))?;
    // All at once: none of them may do anything.
    if report.wants(&idle) {
        sleep(UNUSED);
        let before = servers.iter().map(|place| cpu_ms(place)).collect::<Result<Vec<_>>>()?;
        for _ in 0..seconds * 10 {
            if interrupt::requested() {
                return Ok(());
            }
            sleep(Duration::from_millis(100));
        }
        for (place, before) in servers.iter().zip(before) {
            report.add(&idle, place.name(), vec![cpu_ms(place)? - before]);
        }
    }
    Ok(())
}

/// CPU time that the server used after the last of a burst of opens was closed.
fn cpu_after_burst_ms(place: &Place) -> Result<f64> {
    let path = place.root.join("opened");
    for _ in 0..BURST {
        drop(File::open(&path)?);
    }
    let at_end = cpu_ms(place)?;
    sleep(REST);
    Ok(cpu_ms(place)? - at_end)
}

/// CPU time of the server's process so far, of threads that have ended too.
fn cpu_ms(place: &Place) -> Result<f64> {
    let server = place.server().context("the bare directory has no server")?;
    let time = server.cpu_time()?;
    Ok(time.as_secs_f64() * 1e3)
}
