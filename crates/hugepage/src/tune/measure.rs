//! The measurements: every engine of a row in turn, round by round, each on the next cold buffer.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::tuning::{Origin, Sample, TuneOptions, Tuning};
use crate::engine::{Chunk, ClearSpec, Clearer, Copier, CopySpec, Order, Store};
use crate::error::Error;
use crate::machine::HUGE_2M;
use crate::plan::{Cell, ClearPlan, Heat};
use crate::region::{Backing, Prefault, Region, TouchAt};

/// Times the last-level cache that the working set is, so that a buffer is cold when its turn comes
/// again. With less than that the wrong engine won.
const CACHES: usize = 4;
/// Part of the available memory that tuning takes at most: one in this many.
const MEMORY_SHARE: usize = 4;
/// Buffers that each thread needs at least when all clear at once.
const BUFFERS_PER_THREAD: usize = 4;
/// Rounds after which an engine that is far behind is measured no further.
const TRIAL_ROUNDS: usize = 3;
/// Bytes that the owner writes round the target after the clear, which is what a target is for.
const USE_BYTES: usize = 64 << 10;
/// Where the target is in the buffer.
const TARGET: usize = HUGE_2M / 2;

pub(super) fn measure(options: &TuneOptions) -> Result<Tuning, Error> {
    let started = Instant::now();
    let rounds = options.rounds.max(1);
    let mut plan = ClearPlan::detected_on(&options.machine);
    let (wanted, mut notes) = working_set(options, plan.llc_bytes());
    let (region, mut samples, touch) = set_up(wanted, rounds)?;
    plan.set_touch(touch);
    let faulted = started.elapsed();
    let mut bench = Bench { region, next: 0, rounds };
    notes.extend(bench.region.report().fallbacks.iter().filter_map(|fallback| {
        // Hugetlb is not needed for a few milliseconds; base pages would spoil the figures.
        let hugetlb = matches!(fallback.tried, Backing::Hugetlb { .. });
        (!hugetlb).then(|| fallback.reason.to_string())
    }));
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
        working_set_bytes: bench.region.len(),
        set_up: faulted,
        elapsed: started.elapsed(),
        notes,
    })
}

/// How much memory to measure on, in whole huge pages.
fn working_set(options: &TuneOptions, llc_bytes: usize) -> (usize, Vec<String>) {
    let least = CACHES * llc_bytes;
    let mut notes = Vec::new();
    let wanted = options.working_set_bytes.unwrap_or_else(|| {
        let spread = all_threads().get() * BUFFERS_PER_THREAD * HUGE_2M;
        let free = options.machine.meminfo("MemAvailable").unwrap_or(usize::MAX);
        let limit = options.machine.memory_limit().map_or(usize::MAX, |limit| limit.bytes);
        least.max(spread).min(free.min(limit) / MEMORY_SHARE)
    });
    let bytes = wanted.max(BUFFERS_PER_THREAD * HUGE_2M).next_multiple_of(HUGE_2M);
    if bytes < least {
        notes.push(format!(
            "measured on {bytes} bytes, less than {CACHES} times the cache of {llc_bytes}: \
             the plan may be wrong"
        ));
    }
    (bytes, notes)
}

/// Maps the working set, by which it finds out whether to touch the first byte or the last.
fn set_up(bytes: usize, rounds: usize) -> Result<(Region, Vec<Sample>, TouchAt), Error> {
    let ladder = [Backing::Thp, Backing::Base];
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); 2];
    for _ in 0..rounds.min(4) {
        for (at, times) in [TouchAt::First, TouchAt::Last].into_iter().zip(&mut times) {
            let lazy = Region::options(HUGE_2M).ladder(&ladder).prefault(Prefault::Lazy);
            let mut page = lazy.map()?;
            let offset = if at == TouchAt::First { 0 } else { HUGE_2M - 1 };
            times.push(timed_ns(|| touch(&mut page.as_mut_slice()[offset])));
        }
    }
    let names = ["first byte".to_owned(), "last byte".to_owned()];
    let (best, samples) = judge("touch", &names, HUGE_2M, times);
    let at = if best == 0 { TouchAt::First } else { TouchAt::Last };
    let region = Region::options(bytes).ladder(&ladder).prefault(Prefault::Touch(at)).map()?;
    Ok((region, samples, at))
}

fn touch(byte: &mut u8) {
    *std::hint::black_box(byte) = 1;
}

struct Bench {
    region: Region,
    /// The buffer whose turn it is; it was used longest ago.
    next: usize,
    rounds: usize,
}

impl Bench {
    /// Measures the engines for a row, and finds the best.
    fn row(&mut self, cell: Cell) -> (Clearer, Vec<Sample>) {
        let clearers = candidates(cell);
        let times = match cell {
            Cell::ColdMany | Cell::TargetMany => self.crowd(&clearers, cell == Cell::TargetMany),
            Cell::Hot => self.hot(&clearers),
            Cell::Cold | Cell::Target => self.cold(&clearers, cell == Cell::Target),
        };
        let names: Vec<String> = clearers.iter().map(|each| each.spec().to_string()).collect();
        let (best, samples) = judge(cell.name(), &names, HUGE_2M, times);
        (clearers[best], samples)
    }

    fn cold(&mut self, clearers: &[Clearer], target: bool) -> Vec<Vec<u64>> {
        // No knock-out: stores past the cache evict nothing, so it takes the cached ones between
        // them to make the buffers of the rounds before cold again.
        interleaved(self.rounds, clearers.len(), &mut |each| {
            let buffer = self.take();
            sample_ns(&clearers[each], buffer, target)
        })
    }

    /// The buffer is written by cached stores right before, as by an owner who has just finished.
    fn hot(&mut self, clearers: &[Clearer]) -> Vec<Vec<u64>> {
        let rounds = self.rounds;
        let buffer = self.take();
        knock_out(rounds, clearers.len(), &mut |each| {
            dirty(buffer);
            sample_ns(&clearers[each], buffer, false)
        })
    }

    /// Every thread clears its own buffers, all with the same engine at the same time.
    fn crowd(&mut self, clearers: &[Clearer], target: bool) -> Vec<Vec<u64>> {
        let threads = all_threads().get();
        let rounds = self.rounds;
        let share = (self.region.len() / HUGE_2M / threads).max(1) * HUGE_2M;
        let gate = AtomicUsize::new(0);
        let parts = self.region.as_mut_slice().chunks_exact_mut(share).take(threads);
        let crowd = parts.len();
        let run = |part: &mut [u8]| {
            let mut buffer = 0;
            let mut passed = 0;
            interleaved(rounds, clearers.len(), &mut |each| {
                let start = buffer * HUGE_2M % part.len();
                buffer += 1;
                passed += crowd;
                gather(&gate, passed);
                sample_ns(&clearers[each], &mut part[start..start + HUGE_2M], target)
            })
        };
        thread::scope(|scope| {
            let handles: Vec<_> = parts.map(|part| scope.spawn(|| run(part))).collect();
            let mut all = vec![Vec::new(); clearers.len()];
            for times in handles.into_iter().filter_map(|handle| handle.join().ok()) {
                all.iter_mut().zip(times).for_each(|(all, times)| all.extend(times));
            }
            all
        })
    }

    fn copies(&mut self, source: Heat) -> (Copier, Vec<Sample>) {
        let copiers = copy_candidates();
        let run = if source == Heat::Hot { knock_out } else { interleaved };
        let times = run(self.rounds, copiers.len(), &mut |each| {
            let start = self.advance(2);
            let pair = &mut self.region.as_mut_slice()[start..start + 2 * HUGE_2M];
            let (from, to) = pair.split_at_mut(HUGE_2M);
            if source == Heat::Hot {
                dirty(from);
            }
            // The halves are equally long, so the copy cannot be refused.
            timed_ns(|| drop(copiers[each].copy(to, from)))
        });
        let names: Vec<String> = copiers.iter().map(|each| each.spec().to_string()).collect();
        let row = if source == Heat::Hot { "copy-hot" } else { "copy-cold" };
        let (best, samples) = judge(row, &names, HUGE_2M, times);
        (copiers[best], samples)
    }

    fn take(&mut self) -> &mut [u8] {
        let start = self.advance(1);
        &mut self.region.as_mut_slice()[start..start + HUGE_2M]
    }

    /// The offset of the next `count` buffers in a row.
    fn advance(&mut self, count: usize) -> usize {
        let buffers = self.region.len() / HUGE_2M;
        if self.next + count > buffers {
            self.next = 0;
        }
        self.next += count;
        (self.next - count) * HUGE_2M
    }
}

/// Waits until `count` arrivals were counted. A thread that is not running delays all, so the wait
/// yields.
fn gather(gate: &AtomicUsize, count: usize) {
    gate.fetch_add(1, Ordering::AcqRel);
    while gate.load(Ordering::Acquire) < count {
        thread::yield_now();
    }
}

fn candidates(cell: Cell) -> Vec<Clearer> {
    let forward = Store::supported().filter(|store| *store != Store::Hybrid);
    let mut specs: Vec<ClearSpec> = forward.map(ClearSpec::forward).collect();
    if matches!(cell, Cell::Target | Cell::TargetMany) {
        // Rep and the narrow vectors have not been seen to win with a target, and would cost time.
        specs.retain(|spec| !matches!(spec.store, Store::Rep | Store::Avx2 | Store::NtAvx2));
        specs.extend([64 << 10, 256 << 10].map(|w| ClearSpec::forward(Store::Hybrid).window(w)));
        specs.push(
            ClearSpec::forward(Store::Plain).order(Order::TargetLast).chunk(Chunk::kib::<64>()),
        );
    }
    specs.into_iter().filter_map(|spec| spec.check().ok()).collect()
}

fn copy_candidates() -> Vec<Copier> {
    use Store::{Avx2, Avx512, NtAvx2, NtAvx512, Plain};
    let mut specs: Vec<CopySpec> =
        [Plain, Avx2, Avx512, NtAvx2, NtAvx512].map(CopySpec::forward).to_vec();
    for store in [NtAvx2, NtAvx512] {
        specs.extend([512, 2048].map(|bytes| CopySpec::forward(store).prefetch(bytes)));
    }
    specs.into_iter().filter_map(|spec| spec.check().ok()).collect()
}

/// Calls `sample` for each of `count` engines in every round, starting with another one each time,
/// and gathers the results by engine.
fn interleaved(rounds: usize, count: usize, sample: &mut dyn FnMut(usize) -> u64) -> Vec<Vec<u64>> {
    let mut times = vec![Vec::with_capacity(rounds); count];
    for round in 0..rounds {
        for each in (0..count).map(|step| (round + step) % count) {
            times[each].push(sample(each));
        }
    }
    times
}

/// As [`interleaved`], but after [`TRIAL_ROUNDS`] only the engines go on whose best sample is
/// within half of the best of all.
fn knock_out(rounds: usize, count: usize, sample: &mut dyn FnMut(usize) -> u64) -> Vec<Vec<u64>> {
    let mut times = interleaved(rounds.min(TRIAL_ROUNDS), count, sample);
    let best_of = |times: &[u64]| times.iter().copied().min().unwrap_or(u64::MAX);
    let best = times.iter().map(|times| best_of(times)).min().expect("a row has engines");
    let limit = best.saturating_add(best / 2);
    let left: Vec<usize> = (0..count).filter(|each| best_of(&times[*each]) <= limit).collect();
    let more = rounds.saturating_sub(TRIAL_ROUNDS);
    let rest = interleaved(more, left.len(), &mut |at| sample(left[at]));
    for (each, more) in left.into_iter().zip(rest) {
        times[each].extend(more);
    }
    times
}

fn sample_ns(clearer: &Clearer, buffer: &mut [u8], target: bool) -> u64 {
    timed_ns(|| {
        if target {
            // The target lies inside every buffer of 2 MiB, so it cannot be refused.
            let _ = clearer.clear_towards(buffer, TARGET);
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

fn timed_ns(work: impl FnOnce()) -> u64 {
    let started = Instant::now();
    work();
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The index of the engine with the least median, and a sample of each.
fn judge(row: &str, names: &[String], bytes: usize, times: Vec<Vec<u64>>) -> (usize, Vec<Sample>) {
    let mut samples: Vec<Sample> = Vec::new();
    for (name, mut times) in names.iter().zip(times) {
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or(u64::MAX);
        samples.push(Sample {
            row: row.into(),
            engine: name.clone(),
            bytes,
            median_ns: at(times.len() / 2),
            min_ns: at(0),
            max_ns: at(times.len().saturating_sub(1)),
            chosen: false,
        });
    }
    let best = (0..samples.len()).min_by_key(|index| samples[*index].median_ns);
    let best = best.expect("a row has engines");
    samples[best].chosen = true;
    (best, samples)
}

fn all_threads() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
