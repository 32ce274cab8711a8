//! The measurements: every engine of a row in turn, round by round, each on the next cold buffer.
//!
//! A buffer is cold when its turn comes again because others evicted it in between, so the working
//! set is several times the part of the last-level cache that this machine's CPUs can use. Stores
//! past the cache evict nothing; the cached kinds take turns with them in every round. Kinds of
//! store come first; the winner is then tried with every chunk size and order.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_topology::CoreKind;

use super::candidates;
use super::rounds::{CHUNK_MARGIN, Rounds, STORE_MARGIN, interleaved, judge, knock_out, timed_ns};
use super::tuning::{Origin, Sample, TuneOptions, Tuning};
use crate::engine::{Clearer, Copier};
use crate::error::Error;
use crate::machine::HUGE_2M;
use crate::plan::{Cell, ClearPlan, Heat};
use crate::region::{Backing, Prefault, Region, TouchAt};

/// Times the usable part of the last-level cache that the working set is. With less the wrong
/// engine won.
const CACHES: usize = 4;
/// The working set is no smaller than this only because little of a large cache is this machine's:
/// what the neighbours leave of it changes from moment to moment.
const CAUTIOUS_BYTES: usize = 128 << 20;
/// The largest working set.
const MOST_BYTES: usize = 512 << 20;
/// Part of the available memory that tuning takes at most: one in this many.
const MEMORY_SHARE: usize = 4;
/// Buffers that each thread needs at least when all clear at once.
const BUFFERS_PER_THREAD: usize = 4;
/// Time for faulting in the working set, which in a guest may be the host's work. What is there by
/// then must do, if it is [`LEAST_BYTES`].
const SET_UP_BUDGET: Duration = Duration::from_millis(400);
/// The smallest working set.
const LEAST_BYTES: usize = 16 << 20;
/// Bytes faulted in between two looks at the clock.
const SET_UP_STEP: usize = 16 << 20;
/// Time for one row; there are seven, of which three have a second part as long.
const ROW_BUDGET: Duration = Duration::from_millis(25);
/// Bytes that the owner writes round the target after the clear, which is what a target is for.
const USE_BYTES: usize = 64 << 10;
/// Where the target is in the buffer.
const TARGET: usize = HUGE_2M / 2;

pub(super) fn measure(options: &TuneOptions) -> Result<Tuning, Error> {
    let started = Instant::now();
    let rounds = options.rounds.max(1);
    let mut plan = ClearPlan::detected_on(&options.machine);
    let (touch, mut samples) = first_touch(rounds)?;
    plan.set_touch(touch);
    let WorkingSet { region, bytes, notes } = set_up(options, touch)?;
    let set_up = started.elapsed();
    let mut bench = Bench { region, bytes, next: 0, rounds };
    // Several threads at once use all buffers, so they come last: a row finds cold only what no row
    // right before it has used.
    let mut clears = |bench: &mut Bench, cells: &[Cell]| {
        for cell in cells {
            let (chosen, row) = bench.row(*cell);
            plan.set_clear(*cell, chosen);
            samples.extend(row);
        }
    };
    clears(&mut bench, &[Cell::Cold, Cell::Target]);
    let copies = [Heat::Cold, Heat::Hot].map(|source| (source, bench.copies(source)));
    clears(&mut bench, &[Cell::Hot, Cell::ColdMany, Cell::TargetMany]);
    for (source, (chosen, row)) in copies {
        plan.set_copy(source, chosen);
        samples.extend(row);
    }
    Ok(Tuning {
        plan,
        origin: Origin::Measured,
        samples,
        working_set_bytes: bytes,
        set_up,
        elapsed: started.elapsed(),
        notes,
    })
}

/// Memory to measure on, and what is doubtful about it.
struct WorkingSet {
    region: Region,
    /// The part of it that is faulted in, in bytes.
    bytes: usize,
    notes: Vec<String>,
}

fn set_up(options: &TuneOptions, touch: TouchAt) -> Result<WorkingSet, Error> {
    let wanted = wanted_bytes(options);
    let ladder = [Backing::Thp, Backing::Base];
    let region = Region::options(wanted).ladder(&ladder).prefault(Prefault::Lazy);
    let region = region.machine(options.machine.clone()).map()?;
    let deadline = Instant::now() + SET_UP_BUDGET;
    let mut bytes = 0;
    while bytes < wanted && (bytes < LEAST_BYTES || Instant::now() < deadline) {
        let step = SET_UP_STEP.min(wanted - bytes);
        region.fault_in(bytes, step, Prefault::Touch(touch))?;
        bytes += step;
    }
    let notes = doubts(options, &region, bytes);
    Ok(WorkingSet { region, bytes, notes })
}

/// How much memory to measure on, in whole huge pages.
fn wanted_bytes(options: &TuneOptions) -> usize {
    let wanted = options.working_set_bytes.unwrap_or_else(|| {
        let spread = all_threads().get() * BUFFERS_PER_THREAD * HUGE_2M;
        // Nothing known of a limit is no limit.
        let free = options.machine.meminfo("MemAvailable").unwrap_or(usize::MAX);
        let limit = options.machine.memory_limit().map_or(usize::MAX, |limit| limit.bytes);
        let whole = CACHES.saturating_mul(ClearPlan::detected_on(&options.machine).llc_bytes());
        let cautious = whole.min(CAUTIOUS_BYTES);
        let enough = enough_bytes(options).max(cautious).max(spread).min(MOST_BYTES);
        enough.min(free.min(limit) / MEMORY_SHARE)
    });
    wanted.max(BUFFERS_PER_THREAD * HUGE_2M).next_multiple_of(HUGE_2M)
}

/// How much is enough for buffers to be cold when their turn comes.
fn enough_bytes(options: &TuneOptions) -> usize {
    let assumed = || ClearPlan::detected_on(&options.machine).llc_bytes();
    CACHES.saturating_mul(options.machine.usable_llc_bytes().unwrap_or_else(assumed))
}

/// What may make the plan wrong. The cache file keeps it with the plan.
fn doubts(options: &TuneOptions, region: &Region, bytes: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let enough = enough_bytes(options);
    if bytes < enough {
        notes.push(format!(
            "measured on {bytes} bytes, less than {CACHES} times the {} bytes of cache that these \
             CPUs can use: the plan may be wrong",
            enough / CACHES
        ));
    }
    let on_base_pages = |reason: &Error| {
        format!("measured on base pages ({reason}): the plan may be wrong for huge pages")
    };
    notes.extend(region.report().fallbacks.iter().map(|each| on_base_pages(&each.reason)));
    if all_threads().get() == 1 {
        notes.push(
            "measured with one CPU: the rows for several threads are those for one, and may be wrong"
                .into(),
        );
    }
    let topology = options.machine.topology();
    let small = |kind| kind == Some(CoreKind::Efficiency);
    if topology.allowed().iter().any(|cpu| small(topology.kind_of(cpu))) {
        notes.push(
            "this processor has several kinds of cores, and the plan is that of the one it was \
             measured on: it may be wrong on the others"
                .into(),
        );
    }
    notes
}

/// Finds out whether to touch the first byte of a page or the last.
fn first_touch(rounds: usize) -> Result<(TouchAt, Vec<Sample>), Error> {
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); 2];
    for _ in 0..rounds.min(4) {
        for (at, times) in [TouchAt::First, TouchAt::Last].into_iter().zip(&mut times) {
            let ladder = [Backing::Thp, Backing::Base];
            let lazy = Region::options(HUGE_2M).ladder(&ladder).prefault(Prefault::Lazy);
            let mut page = lazy.map()?;
            let offset = if at == TouchAt::First { 0 } else { HUGE_2M - 1 };
            times.push(timed_ns(|| touch(&mut page.as_mut_slice()[offset])));
        }
    }
    let names = ["first byte".to_owned(), "last byte".to_owned()];
    let (best, samples) = judge("touch", &names, HUGE_2M, times, STORE_MARGIN);
    Ok((if best == 0 { TouchAt::First } else { TouchAt::Last }, samples))
}

fn touch(byte: &mut u8) {
    *std::hint::black_box(byte) = 1;
}

struct Bench {
    region: Region,
    /// The part of the region that is used, in bytes.
    bytes: usize,
    /// The buffer whose turn it is; it was used longest ago.
    next: usize,
    rounds: usize,
}

impl Bench {
    /// Measures the engines for a row, and finds the best.
    fn row(&mut self, cell: Cell) -> (Clearer, Vec<Sample>) {
        let (winner, mut samples) = self.contest(cell, &candidates::stores(cell), STORE_MARGIN);
        if matches!(cell, Cell::ColdMany | Cell::TargetMany) {
            return (winner, samples);
        }
        let finer = candidates::chunks_and_orders(&winner);
        let (best, finer) = self.contest(cell, &finer, CHUNK_MARGIN);
        // The winner takes part again; one sample of it is enough to print.
        samples.retain(|sample| !sample.chosen);
        samples.extend(finer);
        (best, samples)
    }

    fn contest(&mut self, cell: Cell, clearers: &[Clearer], margin: u64) -> (Clearer, Vec<Sample>) {
        let times = match cell {
            Cell::ColdMany | Cell::TargetMany => self.crowd(clearers, cell == Cell::TargetMany),
            Cell::Hot => self.hot(clearers),
            Cell::Cold | Cell::Target => self.cold(clearers, cell == Cell::Target),
        };
        let names: Vec<String> = clearers.iter().map(|each| each.spec().to_string()).collect();
        let (best, samples) = judge(cell.name(), &names, HUGE_2M, times, margin);
        (clearers[best], samples)
    }

    fn rounds(&self) -> Rounds {
        Rounds::new(self.rounds, ROW_BUDGET)
    }

    fn cold(&mut self, clearers: &[Clearer], target: bool) -> Vec<Vec<u64>> {
        // No knock-out: it takes the cached kinds to make the buffers of the rounds before cold
        // again.
        interleaved(self.rounds(), clearers.len(), &mut |each| {
            let buffer = self.take();
            sample_ns(&clearers[each], buffer, target)
        })
    }

    /// The buffer is written by cached stores right before, as by an owner who has just finished.
    fn hot(&mut self, clearers: &[Clearer]) -> Vec<Vec<u64>> {
        let rounds = self.rounds();
        let buffer = self.take();
        knock_out(rounds, clearers.len(), &mut |each| {
            dirty(buffer);
            sample_ns(&clearers[each], buffer, false)
        })
    }

    /// Every thread clears its own buffers, all with the same engine at the same time.
    fn crowd(&mut self, clearers: &[Clearer], target: bool) -> Vec<Vec<u64>> {
        let threads = all_threads().get();
        let rounds = self.rounds();
        let share = (self.bytes / HUGE_2M / threads).max(1) * HUGE_2M;
        let parts = self.region.as_mut_slice()[..self.bytes].chunks_exact_mut(share).take(threads);
        let meeting = Meeting::new(parts.len());
        let run = |part: &mut [u8]| {
            let mut times = vec![Vec::new(); clearers.len()];
            let mut buffer = 0;
            for round in (0..).take_while(|round| meeting.all_go_on(rounds.go_on(*round))) {
                for each in (0..clearers.len()).map(|step| (round + step) % clearers.len()) {
                    let start = buffer * HUGE_2M % part.len();
                    buffer += 1;
                    meeting.gather();
                    let buffer = &mut part[start..start + HUGE_2M];
                    times[each].push(sample_ns(&clearers[each], buffer, target));
                }
            }
            times
        };
        thread::scope(|scope| {
            let handles: Vec<_> = parts.map(|part| scope.spawn(|| run(part))).collect();
            let mut all = vec![Vec::new(); clearers.len()];
            for handle in handles {
                let times = handle.join().expect("clearing does not panic");
                all.iter_mut().zip(times).for_each(|(all, times)| all.extend(times));
            }
            all
        })
    }

    fn copies(&mut self, source: Heat) -> (Copier, Vec<Sample>) {
        let copiers = candidates::copiers();
        let run = if source == Heat::Hot { knock_out } else { interleaved };
        let times = run(self.rounds(), copiers.len(), &mut |each| {
            let start = self.advance(2);
            let pair = &mut self.region.as_mut_slice()[start..start + 2 * HUGE_2M];
            let (from, to) = pair.split_at_mut(HUGE_2M);
            if source == Heat::Hot {
                dirty(from);
            }
            timed_ns(|| copiers[each].copy(to, from).expect("the halves are equally long"))
        });
        let names: Vec<String> = copiers.iter().map(|each| each.spec().to_string()).collect();
        let row = if source == Heat::Hot { "copy-hot" } else { "copy-cold" };
        let (best, samples) = judge(row, &names, HUGE_2M, times, STORE_MARGIN);
        (copiers[best], samples)
    }

    fn take(&mut self) -> &mut [u8] {
        let start = self.advance(1);
        &mut self.region.as_mut_slice()[start..start + HUGE_2M]
    }

    /// The offset of the next `count` buffers in a row.
    fn advance(&mut self, count: usize) -> usize {
        let buffers = self.bytes / HUGE_2M;
        if self.next + count > buffers {
            self.next = 0;
        }
        self.next += count;
        (self.next - count) * HUGE_2M
    }
}

/// Where the threads of a crowd wait for each other. One that is not running delays all, so the
/// wait yields.
struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
    somebody_stops: AtomicBool,
}

impl Meeting {
    fn new(threads: usize) -> Self {
        let somebody_stops = AtomicBool::new(false);
        Self { threads, arrived: AtomicUsize::new(0), somebody_stops }
    }

    /// Waits until every thread has arrived as often as this one.
    fn gather(&self) {
        let number = self.arrived.fetch_add(1, Ordering::AcqRel);
        let complete = (number / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::Acquire) < complete {
            thread::yield_now();
        }
    }

    /// Whether every thread goes on; all get the same result.
    fn all_go_on(&self, go_on: bool) -> bool {
        if !go_on {
            self.somebody_stops.store(true, Ordering::Release);
        }
        self.gather();
        let stop = self.somebody_stops.load(Ordering::Acquire);
        // Nobody may write again before all have read.
        self.gather();
        !stop
    }
}

fn sample_ns(clearer: &Clearer, buffer: &mut [u8], target: bool) -> u64 {
    timed_ns(|| {
        if target {
            clearer.clear_towards(buffer, TARGET).expect("the target lies in every buffer");
            dirty(&mut buffer[TARGET - USE_BYTES / 2..TARGET + USE_BYTES / 2]);
        } else {
            clearer.clear(buffer);
        }
    })
}

/// Writes every byte with cached stores.
fn dirty(buffer: &mut [u8]) {
    std::hint::black_box(buffer).fill(0x5A);
}

/// Where the system does not say, one: a crowd of one is then measured, and noted.
fn all_threads() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
