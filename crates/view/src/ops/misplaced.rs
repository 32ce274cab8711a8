//! Sealed files where plain ones are expected.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::Caller;

use crate::content::asker::asked_by;
use crate::lower::{self, Stat};
use crate::table::Node;
use crate::view::View;

impl View {
    /// Refuses a file that shows its own bytes, masked or not, if those are of a sealed file: a program
    /// would take them for content, and break the file by writing. Somebody moved it here beneath.
    /// Only in a view that seals files. What is `cut` to nothing is no sealed file afterwards. What was written
    /// to it under its rule is committed before, or the commit would come over what is written now.
    ///
    /// # Errors
    /// `EIO`; `EBUSY` while somebody has it open as a sealed file.
    pub(super) fn refuse_misplaced(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        stat: &Stat,
        cut: bool,
    ) -> Result<(), Errno> {
        // Few plain files have such a length, and only these are looked at.
        let looks = self.contents.has_keys() && tollgate_seal::may_be_sealed(stat.size());
        if !looks {
            return Ok(());
        }
        self.contents.settle(node)?;
        if cut {
            return Ok(());
        }
        let named = self.fds.path_once(node)?;
        // If it cannot be read here, the open has its own error.
        let Ok(file) = lower::reopen_once(named.as_fd()).map(File::from) else { return Ok(()) };
        if !tollgate_seal::looks_sealed(&file).unwrap_or(false) {
            return Ok(());
        }
        let path = self.path_for_log(node);
        asked_by(caller, || self.contents.misplaced(&path, self.shown_ino(node)));
        Err(Errno::IO)
    }
}
