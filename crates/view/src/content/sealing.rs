//! The sealed files of a view: keys, files that are open, sizes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use crate::audit::Audit;
use crate::content::Content;
use crate::content::committer::{Committer, Pending};
use crate::content::lost::Lost;
use crate::content::sealed::{self, NotOpen, OpenFile, Sealed, Shown};
use crate::content::to_open::ToOpen;
use crate::lower::{self, Key, Stat, Version};
use crate::one_writer::OneWriter;
use crate::seal_keys::SealKeys;
use crate::small;
use crate::table::Node;

/// Between two attempts to open a file that cannot be opened yet.
const PAUSE: Duration = Duration::from_millis(1);
/// How long who opens a file as a plain one waits for its last commit, and for a handle that may have been
/// closed already: the kernel tells of that later.
const COMMITTING: Duration = Duration::from_secs(2);
const CLOSING: Duration = Duration::from_millis(100);
/// Sizes that are kept; beyond, all are found anew.
const SIZES_MAX: usize = 1 << 16;

/// Open files, and those that wait to be committed.
type OpenFiles = FxHashMap<Key, Weak<OpenFile>>;

/// The file of `node`, if somebody has it open or it waits to be committed.
fn find(all: &OpenFiles, node: &Node) -> Option<Arc<OpenFile>> {
    node.content_keys().find_map(|key| all.get(&key).and_then(Weak::upgrade))
}

/// What sealed files need; made only for a view that has keys.
pub(super) struct Sealing {
    keys: Arc<SealKeys>,
    audit: Option<Arc<dyn Audit>>,
    /// By the lower file: the kernel may forget the inode, and ask for it as another one, while what
    /// was written to it waits to be committed. Where inodes share keys, a file is found by its node, and by its
    /// key only if it was opened to be written: then an overlay has copied it up, and the key is its own.
    open: Mutex<OpenFiles>,
    sizes: Mutex<Sizes>,
    committer: Arc<Committer>,
    lost: Arc<Lost>,
    writer: Arc<OneWriter>,
}

impl Sealing {
    /// # Errors
    /// If the thread that commits cannot be started.
    pub(super) fn new(keys: Arc<SealKeys>, audit: Option<Arc<dyn Audit>>) -> io::Result<Sealing> {
        let committer = Arc::new(Committer::start()?);
        let writer = Arc::new(OneWriter::new(keys.open_lock()));
        let (open, sizes, lost) = (Mutex::default(), Mutex::default(), Arc::default());
        Ok(Sealing { keys, audit, open, sizes, committer, lost, writer })
    }

    /// Why this view does not write such files: `EWOULDBLOCK` if another one of the directory does.
    pub(super) fn refuses_writers(&self) -> Option<Errno> {
        self.writer.take().err()
    }

    /// Opens `file`, together with those who have it open already.
    pub(super) fn open(
        &self,
        file: &ToOpen<'_>,
        domain: &Arc<str>,
    ) -> Result<Arc<dyn Content>, Errno> {
        if file.writes || file.is_new {
            self.writer.take().map_err(|_| Errno::ROFS)?;
        }
        let begun = Instant::now();
        loop {
            match self.open_now(file, domain, begun.elapsed()) {
                // Nobody is kept from other files meanwhile.
                Err(NotOpen::Yet) => std::thread::sleep(PAUSE),
                Err(NotOpen::Fails(errno)) => return Err(errno),
                Ok(opened) => return Ok(opened),
            }
        }
    }

    /// The same once, after the caller has `waited` so long.
    fn open_now(
        &self,
        file: &ToOpen<'_>,
        domain: &Arc<str>,
        waited: Duration,
    ) -> Result<Arc<dyn Content>, NotOpen> {
        let mut all = self.open.lock();
        let key = file.node.key;
        if file.is_new {
            self.lost.take(key);
        }
        let known = find(&all, file.node);
        // What was opened while another server wrote may be out of date, for whoever has it open.
        let open = match known.filter(|open| open.is_writers()) {
            Some(open) => {
                open.join(file, domain, &self.keys, waited)?;
                open
            }
            None => {
                let told = (self.audit.clone(), waited);
                let open =
                    OpenFile::open(file, domain, &self.keys, &self.writer, &self.lost, told)?;
                let open = Arc::new(open);
                if all.len() >= all.capacity() {
                    all.retain(|_, other| other.strong_count() > 0);
                }
                all.insert(file.node.own_key().unwrap_or(key), Arc::downgrade(&open));
                open
            }
        };
        if file.writes && file.node.own_key().is_some() {
            all.insert(lower::stat_fd(file.fd.as_fd())?.key(), Arc::downgrade(&open));
        }
        drop(all);
        let writer = file.writes.then_some(&file.fd);
        Ok(Arc::new(Sealed::new(open, Arc::clone(&self.committer), writer)))
    }

    fn if_open(&self, node: &Node) -> Option<Arc<OpenFile>> {
        find(&self.open.lock(), node)
    }

    /// What is shown of a file that is open, or that was looked at before; of one that lost what was
    /// written, what is durable.
    pub(super) fn known(&self, node: &Node, version: Version) -> Option<Option<Shown>> {
        let shows = |open: &Arc<OpenFile>| open.is_writers() && !open.has_failed();
        if let Some(open) = self.if_open(node).filter(shows) {
            return Some(Some(open.shown()));
        }
        let known = self.sizes.lock().get(node.key, version);
        known.map(|size| size.map(|size| Shown { size, modified: None }))
    }

    /// Runs `act`, which sets the times of the lower file, while no commit does.
    pub(super) fn with_times<T>(&self, node: &Node, act: impl FnOnce() -> T) -> T {
        match self.if_open(node) {
            Some(open) => open.with_times(act),
            None => act(),
        }
    }

    /// Reads the plain size of a file with the rule `domain`; `None` is no rule. What could not be found out
    /// is not remembered: who asks next has it tried again.
    pub(super) fn find_size(
        &self,
        node: &Node,
        version: Version,
        rule: Result<Option<(impl AsFd, Arc<str>)>, Errno>,
    ) -> Option<Shown> {
        let open = |(path, domain)| Ok((sealed::reopen(path)?, domain));
        let opened = rule.and_then(|rule| rule.map(open).transpose());
        let settled = match &opened {
            Ok(Some((fd, _))) => self.settled(node, fd),
            Ok(None) | Err(_) => None,
        };
        // Somebody may have opened it since.
        if let (None, Some(known)) = (&settled, self.known(node, version)) {
            return known;
        }
        let of = settled.as_ref().map_or(version, Stat::version);
        let size = match opened.ok()? {
            Some((fd, domain)) => sealed::plain_size(fd, &self.keys, &domain).ok()?,
            None => None,
        };
        self.sizes.lock().insert(node.key, (of, size), small::now());
        size.map(|size| Shown { size, modified: settled.map(|stat| stat.modified()) })
    }

    /// The lower file as it is now, unless somebody has it open. Who looked at it before may have done so
    /// while it was open, beside a commit.
    fn settled(&self, node: &Node, fd: &OwnedFd) -> Option<Stat> {
        // Nobody opens it meanwhile, and with the last who had it open the last commit is done.
        let open = self.open.lock();
        let is_open = |key: Key| open.get(&key).is_some_and(|open| open.strong_count() > 0);
        if node.content_keys().any(is_open) { None } else { lower::stat_fd(fd.as_fd()).ok() }
    }

    /// The last name of `node` is gone.
    pub(super) fn removed(&self, node: &Node) {
        if let Some(open) = self.if_open(node) {
            self.committer.try_now(open.id());
        }
    }

    /// Waits until nothing of `node` is left to be committed: then its lower file is nobody's but who opens it.
    ///
    /// # Errors
    /// `EBUSY` while somebody has it open as a sealed file.
    pub(super) fn settle(&self, node: &Node) -> Result<(), Errno> {
        let begun = Instant::now();
        while let Some(open) = self.if_open(node) {
            let most = if self.committer.try_now(open.id()) { COMMITTING } else { CLOSING };
            if begun.elapsed() > most {
                return Err(Errno::BUSY);
            }
            drop(open);
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Makes durable what was written.
    pub(super) fn finish(&self) {
        self.committer.finish();
    }

    /// Another policy may seal other files. New files are sealed with the newest key from now on.
    pub(super) fn policy_changed(&self) {
        self.keys.renew();
        self.sizes.lock().0.clear();
    }
}

/// Of files that are not open: of what version, and the plain size if it is sealed.
#[derive(Debug, Default)]
struct Sizes(FxHashMap<Key, (Version, Option<u64>)>);

impl Sizes {
    /// What is known of this version of a file.
    fn get(&self, of: Key, version: Version) -> Option<Option<u64>> {
        self.0.get(&of).filter(|(known, _)| *known == version).map(|(_, size)| *size)
    }

    /// Remembers it, unless the file may change once more without another version: it was changed a
    /// moment before `now`, in seconds.
    fn insert(&mut self, of: Key, (version, size): (Version, Option<u64>), now: i64) {
        if !version.is_settled(now) {
            return;
        }
        if self.0.len() >= SIZES_MAX {
            self.0.clear();
        }
        self.0.insert(of, (version, size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its times are those of 1970.
    #[test]
    fn a_size_is_remembered_once_a_further_change_has_another_time() {
        let any = std::fs::File::open("/").expect("a directory");
        let key = lower::stat_fd(any.as_fd()).expect("attributes").key();
        let version = Version::counted(9);
        let mut sizes = Sizes::default();
        sizes.insert(key, (version, Some(5)), 2);
        assert_eq!(sizes.get(key, version), None, "it was changed 2 s ago");
        sizes.insert(key, (version, Some(6)), 3);
        assert_eq!(sizes.get(key, version), Some(Some(6)));
        assert_eq!(sizes.get(key, Version::counted(8)), None);
    }
}
