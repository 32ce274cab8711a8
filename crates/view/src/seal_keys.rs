//! The keys of sealed files. They become more while the view is served: a rotation makes a new epoch,
//! and seals one file after the other with it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use tollgate_seal::{MasterKeys, SealError};

/// What reads the keyring again: keys if it has newer ones.
type Newer = Box<dyn FnMut() -> Option<MasterKeys> + Send>;
/// What opens the file that whoever writes sealed files has a lock on.
type Lock = Box<dyn Fn() -> Result<OwnedFd, Errno> + Send + Sync>;

/// The keys of a view's sealed files.
pub struct SealKeys {
    known: RwLock<Arc<MasterKeys>>,
    /// Held until what was found is in `known`: whoever asks next hears of nothing newer.
    newer: Mutex<Newer>,
    lock: Lock,
}

impl SealKeys {
    /// `newer` is asked before a file is made, when one is met whose epoch is not known, and at each change
    /// of the policy. It reads the keyring again, if that has changed; `None` if there is nothing newer in it. `lock` opens the
    /// file that the one view that writes has a lock on (flock); the others of the directory only
    /// read.
    pub fn new(
        keys: MasterKeys,
        newer: impl FnMut() -> Option<MasterKeys> + Send + 'static,
        lock: impl Fn() -> Result<OwnedFd, Errno> + Send + Sync + 'static,
    ) -> SealKeys {
        let (known, newer) = (RwLock::new(Arc::new(keys)), Mutex::new(Box::new(newer) as Newer));
        SealKeys { known, newer, lock: Box::new(lock) }
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

    /// Looks for newer ones. Those that others found meanwhile are known at the end, too.
    pub(crate) fn renew(&self) {
        let mut newer = self.newer.lock();
        if let Some(keys) = newer() {
            *self.known.write() = Arc::new(keys);
        }
    }

    /// What `act` does with the keys; once more if it met a newer epoch.
    pub(crate) fn with<T>(
        &self,
        act: impl Fn(&MasterKeys) -> Result<T, SealError>,
    ) -> Result<T, SealError> {
        let tried = self.known();
        match act(&tried) {
            Err(error @ SealError::WrongEpoch { .. }) => {
                let newest = self.newest();
                if Arc::ptr_eq(&tried, &newest) { Err(error) } else { act(&newest) }
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use tollgate_seal::{Keyring, Keys};

    use super::*;

    #[test]
    fn two_who_meet_a_new_epoch_at_once_both_get_its_key() {
        let (mut ring, key) = Keyring::generate().expect("random numbers");
        let first = ring.master_keys(&key).expect("its own key");
        ring.rotate(&key).expect("a further epoch");
        let mut is_read = false;
        let newer = move || {
            let is_first = !std::mem::replace(&mut is_read, true);
            is_first.then(|| {
                std::thread::sleep(Duration::from_millis(100));
                ring.master_keys(&key).expect("its own key")
            })
        };
        let keys = SealKeys::new(first, newer, || Err(Errno::NOSYS));
        let both_met_it = Barrier::new(2);
        let open = || {
            keys.with(|keys| match keys.newest().epoch() {
                2 => Ok(()),
                given => {
                    both_met_it.wait();
                    Err(SealError::WrongEpoch { found: 2, given })
                }
            })
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(open);
            open().expect("the first one");
            other.join().expect("no panic").expect("the other one");
        });
    }
}
