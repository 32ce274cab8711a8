//! Workers that the housekeeper starts for others.
//!
//! A thread begins at the nice level of whoever starts it, and needs a privilege to come back from a
//! higher one. So a thread whose level is above that of the workers that it asks for leaves them to
//! the housekeeper, which is at the level of the thread that built the runtime.

use tollgate_wakequeue::sync::Mutex;

use crate::alarm::Alarm;

/// What is to be started, in the order in which it was asked for.
///
/// Lock legend: (x) a mutex that is held for a few loads and stores.
#[derive(Debug)]
pub(crate) struct Starts<T> {
    /// (x)
    asked_for: Mutex<Vec<T>>,
}

impl<T> Starts<T> {
    pub(crate) fn new() -> Self {
        Self { asked_for: Mutex::new(Vec::new()) }
    }

    /// Has the housekeeper start this one, at once.
    pub(crate) fn ask(&self, new: T, housekeeper: &Alarm) {
        self.asked_for.lock().push(new);
        housekeeper.ring();
    }

    /// What was asked for since. Call it after [`Alarm::rings`]: what comes later rings once more.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.asked_for.lock())
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::Arc;

    /// Two threads ask while the housekeeper is anywhere on its way to sleep: both are served.
    #[test]
    fn whoever_asks_is_served() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(|| {
            let shared = Arc::new((Starts::new(), Alarm::new()));
            let asking = [1, 10].map(|new| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.0.ask(new, &shared.1))
            });
            // As `housekeeper::serve`.
            let mut sum = 0;
            while sum < 11 {
                let rings = shared.1.rings();
                let new: i32 = shared.0.take().into_iter().sum();
                if new == 0 {
                    shared.1.wait(rings, None);
                }
                sum += new;
            }
            asking.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(sum, 11);
        });
    }
}
