//! Who was told that a file it opens has lost its name directly in DIR.
//!
//! The request to open a file names its inode alone. It comes from a path whose last name the kernel
//! believes in, though another process has removed it beneath; or from `/proc/PID/fd`, an `O_PATH`
//! descriptor or a file handle, which lead to the file without a name. `ESTALE` tells them apart: the
//! kernel then looks the name up again, and finds none, or it asks for the same file once more.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tollgate_fuse::NodeId;

/// Most openers that are remembered. One beyond it that comes back is told `ESTALE` itself.
const MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Removed(Mutex<VecDeque<(NodeId, u32)>>);

impl Removed {
    /// Whether thread `tid` was told about `node`, and asks again. If not, it is told now.
    pub(crate) fn asks_again(&self, node: NodeId, tid: u32) -> bool {
        let mut told = self.0.lock();
        if let Some(place) = told.iter().position(|&one| one == (node, tid)) {
            told.remove(place);
            return true;
        }
        if told.len() == MAX {
            told.pop_front();
        }
        told.push_back((node, tid));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opener_is_told_once_per_file() {
        let removed = Removed::default();
        let (one, other) = (NodeId(7), NodeId(8));
        assert!(!removed.asks_again(one, 1));
        assert!(!removed.asks_again(one, 2));
        assert!(!removed.asks_again(other, 1));
        assert!(removed.asks_again(one, 1));
        assert!(!removed.asks_again(one, 1));
        assert!(removed.asks_again(one, 2) && removed.asks_again(other, 1));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let removed = Removed::default();
        (0..=64).for_each(|tid| assert!(!removed.asks_again(NodeId(7), tid)));
        assert!(removed.asks_again(NodeId(7), 64));
        assert!(!removed.asks_again(NodeId(7), 0));
    }
}
