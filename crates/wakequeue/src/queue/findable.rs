//! Pushing what must be found out of the order of its shard.

use super::WakeQueue;
use crate::placement::ShardId;
use crate::worker::Host;
use crate::{Closed, PushError};

impl<T: Send> WakeQueue<T> {
    /// As [`push`](Self::push), for an item that [`take_if`](Self::take_if) finds, however many lie
    /// before it: while others lie beside the ring it joins them. With `most` of them there it is
    /// pushed as any other.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_findable(
        &self,
        shard: ShardId,
        item: T,
        most: usize,
        host: impl Host,
    ) -> Result<(), PushError<T>> {
        self.push_findable_item(shard, item, most, &host)
    }

    /// As [`push_findable`](Self::push_findable), waiting as [`push_blocking`](Self::push_blocking).
    ///
    /// # Errors
    /// As [`push_blocking`](Self::push_blocking).
    pub fn push_findable_blocking(
        &self,
        shard: ShardId,
        item: T,
        most: usize,
        host: impl Host,
    ) -> Result<(), Closed<T>> {
        let push = |item| self.push_findable_item(shard, item, most, &host);
        if self.push_when_room(shard, item, push)? {
            self.shards[shard.index()].ring().pass_on_room();
        }
        Ok(())
    }

    fn push_findable_item(
        &self,
        shard: ShardId,
        item: T,
        most: usize,
        host: &impl Host,
    ) -> Result<(), PushError<T>> {
        self.shards[shard.index()].push_findable(item, most)?;
        self.pushed(shard, host);
        Ok(())
    }
}
