//! The keys of sealed files. They become more while the view is served: a rotation makes a new epoch,
//! and seals one file after the other with it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;
use tollgate_seal::{MasterKeys, SealError};

/// What reads the keyring again: keys if it has newer ones.
type Newer = Box<dyn Fn() -> Option<MasterKeys> + Send + Sync>;
/// What opens the file that whoever writes sealed files has a lock on.
type Lock = Box<dyn Fn() -> Result<OwnedFd, Errno> + Send + Sync>;

/// The keys of a view's sealed files.
pub struct SealKeys {
    known: RwLock<Arc<MasterKeys>>,
    newer: Newer,
    lock: Lock,
}

impl SealKeys {
    /// `newer` is asked before a file is made, when one is met whose epoch is not known, and at each change
    /// of the policy. It reads the keyring again, if that has changed; `None` if there is nothing newer in it. `lock` opens the
    /// file that the one view that writes has a lock on (flock); the others of the directory only
    /// read.
    pub fn new(
        keys: MasterKeys,
        newer: impl Fn() -> Option<MasterKeys> + Send + Sync + 'static,
        lock: impl Fn() -> Result<OwnedFd, Errno> + Send + Sync + 'static,
    ) -> SealKeys {
        let known = RwLock::new(Arc::new(keys));
        SealKeys { known, newer: Box::new(newer), lock: Box::new(lock) }
    }

    pub(crate) fn open_lock(&self) -> Result<OwnedFd, Errno> {
        (self.lock)()
    }

    /// Those that are known now.
    pub(crate) fn known(&self) -> Arc<MasterKeys> {
        Arc::clone(&self.known.read())
    }

    /// Those to make a file with: of a rotation that has begun, the new one.
    pub(crate) fn newest(&self) -> Arc<MasterKeys> {
        self.renew();
        self.known()
    }

    /// Looks for newer ones; whether there are.
    pub(crate) fn renew(&self) -> bool {
        let newer = (self.newer)();
        let found = newer.is_some();
        if let Some(keys) = newer {
            *self.known.write() = Arc::new(keys);
        }
        found
    }

    /// What `act` does with the keys; once more if it met a newer epoch.
    pub(crate) fn with<T>(
        &self,
        act: impl Fn(&MasterKeys) -> Result<T, SealError>,
    ) -> Result<T, SealError> {
        let tried = self.known();
        match act(&tried) {
            Err(error @ SealError::WrongEpoch { .. }) => {
                let others_renewed = !Arc::ptr_eq(&tried, &self.known());
                if self.renew() || others_renewed { act(&self.known()) } else { Err(error) }
            }
            done => done,
        }
    }
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKeys(..)")
    }
}
