//! Loops over slices, cut into chunks.

use super::join::join_on;
use crate::core::QueueCore;

/// Chunks per CPU when the caller leaves the size to the runtime: enough to even out chunks that
/// take twice as long as others, few enough not to matter.
const CHUNKS_PER_CPU: usize = 8;

/// The size of a chunk of `len` items: what was asked for, or a good one for 0.
pub(crate) fn chunk_len(asked: usize, len: usize, cpus: usize) -> usize {
    if asked > 0 { asked } else { len.div_ceil(CHUNKS_PER_CPU * cpus.max(1)).max(1) }
}

/// Calls `body` with every chunk and the index of its first item.
pub(crate) fn chunks<T: Sync>(
    queue: &QueueCore,
    items: &[T],
    first: usize,
    chunk: usize,
    body: &(impl Fn(usize, &[T]) + Sync),
) {
    if items.len() <= chunk {
        if !items.is_empty() {
            body(first, items);
        }
        return;
    }
    let middle = middle(items.len(), chunk);
    let (left, right) = items.split_at(middle);
    join_on(
        queue,
        || chunks(queue, left, first, chunk, body),
        || chunks(queue, right, first + middle, chunk, body),
    );
}

/// As [`chunks`], with exclusive use of the items.
pub(crate) fn chunks_mut<T: Send>(
    queue: &QueueCore,
    items: &mut [T],
    first: usize,
    chunk: usize,
    body: &(impl Fn(usize, &mut [T]) + Sync),
) {
    if items.len() <= chunk {
        if !items.is_empty() {
            body(first, items);
        }
        return;
    }
    let middle = middle(items.len(), chunk);
    let (left, right) = items.split_at_mut(middle);
    join_on(
        queue,
        || chunks_mut(queue, left, first, chunk, body),
        || chunks_mut(queue, right, first + middle, chunk, body),
    );
}

/// Half of `len`, rounded up to a whole chunk: every chunk but the last has the full size.
fn middle(len: usize, chunk: usize) -> usize {
    len.div_ceil(chunk).div_ceil(2) * chunk
}

/// The results of `body` for every item, in order.
pub(crate) fn map<T: Sync, R: Send>(
    queue: &QueueCore,
    items: &[T],
    chunk: usize,
    body: &(impl Fn(&T) -> R + Sync),
) -> Vec<R> {
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(items.len(), || None);
    chunks_mut(queue, &mut results, 0, chunk, &|first, results| {
        for (result, item) in results.iter_mut().zip(&items[first..]) {
            *result = Some(body(item));
        }
    });
    // Every place was filled: a panic of `body` does not get here.
    results.into_iter().flatten().collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_cut_at_multiples_of_their_size() {
        assert_eq!(middle(10, 4), 8);
        assert_eq!(middle(8, 4), 4);
        assert_eq!(middle(5, 4), 4);
        assert_eq!(middle(1000, 1), 500);
    }

    #[test]
    fn the_runtime_chooses_a_size() {
        assert_eq!(chunk_len(7, 1000, 2), 7);
        assert_eq!(chunk_len(0, 1000, 2), 63);
        assert_eq!(chunk_len(0, 0, 2), 1);
        assert_eq!(chunk_len(0, 5, 64), 1);
    }
}
