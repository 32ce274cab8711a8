//! What is found by name while the view itself renames.
//!
//! A file is found by the names that it is known by, from the root on. While a directory above it moves,
//! none of them leads to it for a moment, though no program would ever miss it. The kernel asks once
//! more after `ESTALE`, and gives that to the program if it is overtaken again.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::table::Node;
use crate::view::View;

/// How often it is looked again at most, and for how many pauses a rename is waited for each time: 10 ms, as
/// one may hang below.
const LOOKS: u32 = 20;
const PAUSES: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);

impl View {
    /// Runs `look`, and again if it fails with `ESTALE` while a rename of the view was under way. It must
    /// change nothing before it fails so.
    pub(super) fn unless_overtaken<T>(
        &self,
        mut look: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        for _ in 0..LOOKS {
            let moment = self.names.moment();
            let found = look();
            let overtaken = || moment.is_none_or(|moment| !self.names.is_still(&moment));
            if !matches!(found, Err(Errno::STALE)) || !overtaken() {
                return found;
            }
            self.let_moves_end();
        }
        look()
    }

    /// Opens a file of a view without rules, of which a name was moved meanwhile. Where it is serves to find
    /// it, not to judge it, so a rename that hangs below is not waited for. `open` gets what tells whether it
    /// may be overtaken, and says `None` if it was.
    pub(super) fn open_beside_moves<T>(
        &self,
        mut open: impl FnMut(&dyn Fn() -> bool) -> Result<Option<T>, Errno>,
    ) -> Result<T, Errno> {
        for _ in 0..LOOKS {
            self.let_moves_end();
            let moment = self.names.moment();
            let is_still = || moment.as_ref().is_some_and(|moment| self.names.is_still(moment));
            if let Some(opened) = open(&is_still)? {
                return Ok(opened);
            }
        }
        open(&|| true)?.ok_or(Errno::STALE)
    }

    /// Waits until no rename is under way, at most 10 ms.
    fn let_moves_end(&self) {
        for _ in 0..PAUSES {
            if self.names.moment().is_some() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A descriptor that names `node`, for one use.
    pub(super) fn find_once(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        self.unless_overtaken(|| self.fds.path_once(node))
    }
}
