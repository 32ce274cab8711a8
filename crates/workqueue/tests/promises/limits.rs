//! Limits, order and full places, together with cancelling, delays and changes of attributes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tollgate_workqueue::{Queued, Runtime, SubmitError};

use crate::hold;
use crate::process::kept;

#[test]
fn a_cancelled_item_leaves_no_gap_in_an_ordered_queue() {
    kept("limits::a_cancelled_item_leaves_no_gap_in_an_ordered_queue", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").ordered().build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let items: Vec<_> = (0..300)
            .map(|number| {
                let seen = Arc::clone(&seen);
                queue.item(move || seen.lock().unwrap().push(number))
            })
            .collect();
        let open = hold(&queue);
        for item in &items {
            assert_eq!(item.queue(), Ok(Queued::Now));
        }
        for item in items.iter().step_by(3) {
            assert!(item.cancel());
        }
        for item in items.iter().skip(1).step_by(3) {
            assert_eq!(item.cancel_sync(), Ok(true));
        }
        // To the end of the order, not to their old place.
        for item in items.iter().step_by(3) {
            assert_eq!(item.queue(), Ok(Queued::Now));
        }
        drop(open);
        queue.flush().unwrap();
        let expected: Vec<_> = (2..300).step_by(3).chain((0..300).step_by(3)).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
    });
}

#[test]
fn disabling_removes_what_is_queued_under_a_limit() {
    kept("limits::disabling_removes_what_is_queued_under_a_limit", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(1).build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&runs);
        let item = queue.item(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        for round in 0..50 {
            let open = hold(&queue);
            assert_eq!(item.queue(), Ok(Queued::Now));
            assert_eq!(item.disable_sync(), Ok(true));
            assert_eq!(item.queue(), Err(SubmitError::Disabled));
            drop(open);
            queue.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), round);
            item.enable().unwrap();
            assert_eq!(item.queue(), Ok(Queued::Now));
            assert!(item.flush().is_ok());
            assert_eq!(runs.load(Ordering::SeqCst), round + 1);
        }
    });
}

#[test]
fn attributes_change_while_items_are_cancelled_and_requeued() {
    kept("limits::attributes_change_while_items_are_cancelled_and_requeued", || {
        let runtime = Runtime::builder().max_workers(8).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| churn(&queue, &stop));
            }
            for setting in SETTINGS.iter().cycle().take(600) {
                queue.set(setting).unwrap();
            }
            stop.store(true, Ordering::SeqCst);
        });
        queue.drain().unwrap();
        assert_eq!(queue.in_flight(), 0);
    });
}

const SETTINGS: [&str; 6] = [
    "max_active=1",
    "affinity_scope=cpu",
    "max_active=2",
    "affinity_strict=1",
    "max_active=default",
    "affinity_strict=0",
];

/// Every queueing that was accepted is either run once or cancelled once.
fn churn(queue: &tollgate_workqueue::Queue, stop: &AtomicBool) {
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let item = queue.item(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let (mut queued, mut cancelled) = (0_u32, 0_u32);
    while !stop.load(Ordering::SeqCst) {
        for turn in 0..100 {
            queued += u32::from(item.queue().unwrap() == Queued::Now);
            cancelled += u32::from(turn % 3 == 0 && item.cancel());
        }
        cancelled += u32::from(item.cancel_sync().unwrap());
        assert_eq!(runs.load(Ordering::SeqCst), queued - cancelled);
    }
}
