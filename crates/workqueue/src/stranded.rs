//! Items for which there is no worker when a runtime ends: no thread could be started for them.

use std::sync::Arc;
use std::time::Duration;

use tollgate_wakequeue::sync::Ordering;

use crate::core::QueueCore;
use crate::pool::Pool;
use crate::run;
use crate::shared::Shared;

/// Time between two looks while workers run what is queued.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until nothing is left of queues that take no more items. What no worker can come for is run
/// here: nobody would, as long as the system starts no thread.
pub(crate) fn run_out(shared: &Shared, queues: &[Arc<QueueCore>]) {
    for queue in queues {
        while !queue.in_flight.wait_for_end(LOOK_EVERY) {
            shared.pools().iter().filter(|pool| lacks_workers(pool)).for_each(|pool| run(pool));
        }
    }
    queues.iter().for_each(|queue| queue.in_flight.flush());
}

fn lacks_workers(pool: &Pool) -> bool {
    pool.start_failures.load(Ordering::Relaxed) > 0 && pool.has_backlog()
}

/// Runs what is in pods without a worker, as long as they have none.
fn run(pool: &Pool) {
    loop {
        let homes = pool.homes();
        let stranded = |shard| match pool.key.sharding.strict {
            true => !homes.iter().any(|&home| pool.is_near(home, shard)),
            false => homes.is_empty(),
        };
        if !run::run_stranded(pool, |job| stranded(job.tag.shard())) {
            return;
        }
    }
}
