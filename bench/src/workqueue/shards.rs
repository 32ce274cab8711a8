//! The wake queue alone, with a shard per worker against one FIFO for all, as threads grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use tollgate_wakequeue::{Claim, Config, Layout, Next, ShardId, WakeQueue};

use super::pool::ns;

/// Worker counts that are measured: powers of two, up to twice the CPUs.
pub(super) fn steps(cpus: usize) -> Vec<u16> {
    (0..10).map(|power| 1 << power).filter(|step| usize::from(*step) <= 2 * cpus).collect()
}

/// Nanoseconds per item when `threads` producers push `items` in all to as many workers, which run
/// nothing. Producer n pushes to shard n.
pub(super) fn ns_per_item(threads: u16, sharded: bool, items: u64) -> Result<f64> {
    let layout = if sharded { Layout::uniform(threads, 1) } else { Layout::unsharded(threads) };
    let crew = Arc::new(Crew {
        queue: WakeQueue::new(layout?, Config::default())?,
        workers: Mutex::default(),
        taken: AtomicU64::new(0),
    });
    let each = items / u64::from(threads);
    let start = Instant::now();
    thread::scope(|scope| {
        for producer in 0..threads {
            let crew = &crew;
            let shard = ShardId(if sharded { producer } else { 0 });
            scope.spawn(move || {
                for item in 0..each {
                    let pushed =
                        crew.queue.push_blocking(shard, item, |claim| Crew::start(crew, claim));
                    assert!(pushed.is_ok(), "closed by the end only");
                }
            });
        }
    });
    crew.queue.close();
    Crew::join(&crew)?;
    let elapsed = ns(start);
    let (taken, pushed) = (crew.taken.load(Ordering::Acquire), each * u64::from(threads));
    anyhow::ensure!(taken == pushed, "{taken} of {pushed} items were taken");
    Ok(elapsed / pushed as f64)
}

struct Crew {
    queue: WakeQueue<u64>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Items taken by workers that have left.
    taken: AtomicU64,
}

impl Crew {
    fn start(crew: &Arc<Self>, claim: Claim) {
        let own = Arc::clone(crew);
        let worker = thread::spawn(move || Self::work(&own, claim));
        crew.workers.lock().push(worker);
    }

    fn work(crew: &Arc<Self>, claim: Claim) {
        let mut worker = crew.queue.worker(claim);
        let mut taken = 0;
        while let Next::Item(item) = crew.queue.next(&mut worker, |claim| Self::start(crew, claim))
        {
            std::hint::black_box(item);
            taken += 1;
        }
        crew.taken.fetch_add(taken, Ordering::Release);
    }

    /// Joins all workers, those included that others start meanwhile.
    fn join(crew: &Arc<Self>) -> Result<()> {
        loop {
            let Some(worker) = crew.workers.lock().pop() else {
                return Ok(());
            };
            worker.join().map_err(|_| anyhow!("a worker panicked"))?;
        }
    }
}
