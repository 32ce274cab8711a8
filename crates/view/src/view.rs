//! The view's state.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{
    Attr, Attributes, Connection, Entry, InitFlags, Name, NodeId, Request, SessionConfig,
};

use tollgate_policy::{InodeFacts, Kind, Made, Mode};

use crate::admission::{Admission, Hidden};
use crate::ahead::{Ahead, Tree};
use crate::arrivals::Arrivals;
use crate::audit::Audit;
use crate::borders;
use crate::budget::Budget;
use crate::caller::ProcCallers;
use crate::closer::Closer;
use crate::config::{Config, OpenError, WatchMode};
use crate::content::open::Contents;
use crate::creds::Powers;
use crate::fds::Descriptors;
use crate::handles::{Handles, OpenDir, PassthroughHandles, UserFile};
use crate::idle::LINGER;
use crate::left::LeftNames;
use crate::links::Links;
use crate::listings::Listings;
use crate::locks::Locks;
use crate::lower::{self, Key, Stat};
use crate::making::Making;
use crate::mapped::Dropper;
use crate::mounts::{self, Mount, MountPoint};
use crate::moving::Moving;
use crate::neighbours::{Neighbours, Place};
use crate::overlays;
use crate::passthrough::Passthrough;
use crate::paths::Paths;
use crate::pauses::Pauses;
use crate::policies::Policies;
use crate::probe;
use crate::raised::Raised;
use crate::recent_unlinks::RecentUnlinks;
use crate::removed::Removed;
use crate::road::Road;
use crate::shares::ShareStatus;
use crate::small::Small;
use crate::stats::{ANOTHER_WRITES, Count, Counters, Snapshot, Unavailable, WRITING_SEALED};
use crate::sweeper::Sweeper;
use crate::table::{Node, Table};
use crate::twins::Twins;
use crate::walkers::Walkers;
use crate::watch::{self, FILES, LONG, NEGATIVE, Watch};
use crate::watched::Level;
use crate::writers::Writers;

/// A lower directory seen through a policy. Served by handing it to a
/// [`tollgate_fuse::Session`], configured by [`View::session_config`].
pub struct View {
    pub(crate) table: Arc<Table>,
    pub(crate) fds: Arc<Descriptors>,
    /// Tells of changes behind the view, where that is available.
    pub(crate) watch: Option<Watch>,
    /// Why it is not.
    watch_reason: Option<String>,
    pub(crate) admission: Admission,
    pub(crate) paths: Paths,
    pub(crate) powers: Powers,
    pub(crate) attr_timeout: Duration,
    pub(crate) entry_timeout: Duration,
    pub(crate) root_dev: u64,
    /// Nobody writes through it.
    is_read_only: bool,
    /// The lower directory where it was found, if that is on another mount, and what was mounted below it
    /// at the start.
    found: Option<(Arc<OwnedFd>, Vec<Mount>)>,
    /// Its path at the start, where it is known.
    path_at_start: Option<(Vec<u8>, MountPoint)>,
    /// The lower file system keeps blocks for a user (root, unless it was told otherwise).
    pub(crate) reserves_by_user: bool,
    /// The lower file system asks somebody else about each open: another view, another machine.
    pub(crate) lower_may_refuse: bool,
    /// The lower file system may refuse to one caller what it gives to another, and to this process.
    pub(crate) lower_judges_callers: bool,
    pub(crate) passthrough: Passthrough,
    /// Files whose bytes the view makes, and where their requests run.
    pub(crate) contents: Contents,
    pub(crate) road: Road,
    pub(crate) small: Small,
    pub(crate) ahead: Ahead,
    pub(crate) sweeper: Sweeper,
    pub(crate) closer: Closer,
    /// Has the kernel drop pages of mappings that are older than what was written.
    pub(crate) dropper: Arc<Dropper>,
    pub(crate) writers: Writers,
    pub(crate) left_names: LeftNames,
    pub(crate) removed: Removed,
    pub(crate) recent_unlinks: RecentUnlinks,
    /// Whether a file got a set-user-ID bit or the like.
    pub(crate) raised: Raised,
    pub(crate) files: Handles<UserFile>,
    pub(crate) passthrough_handles: PassthroughHandles,
    pub(crate) dirs: Handles<OpenDir>,
    pub(crate) locks: Locks,
    /// Requests that wait for closes.
    pub(crate) pauses: Arc<Pauses>,
    /// Itself, for threads of its own.
    pub(crate) own: Weak<Self>,
    /// Listings of directories that were not opened.
    pub(crate) listings: Listings,
    /// Who gets attributes with names.
    pub(crate) walkers: Walkers,
    pub(crate) connection: Arc<OnceLock<Connection>>,
    pub(crate) counters: Counters,
    /// Who moves names, and who may not meanwhile.
    pub(crate) names: Arc<Moving>,
    /// From where what was moved has come.
    pub(crate) arrivals: Arrivals,
    /// Who makes names, and who may not meanwhile.
    pub(crate) making: Making,
    /// Files that have several names.
    pub(crate) links: Arc<Links>,
    /// Why names may not be told apart by their case; empty until a policy does that.
    pub(crate) caseless: OnceLock<Option<String>>,
    /// These and the policy, for views beside this one.
    pub(crate) place: Arc<Place>,
    pub(crate) neighbours: Option<Arc<Neighbours>>,
    /// Tells inodes apart where keys do not.
    pub(crate) twins: Option<Twins>,
    pub(crate) clock: Instant,
    pub(crate) mount_points: Vec<PathBuf>,
    /// What is there, beneath the mounts.
    pub(crate) covered: Vec<Key>,
    pub(crate) only_ids: Option<(u32, u32)>,
    pub(crate) audit: Option<Arc<dyn Audit>>,
    stack_depth: u32,
    may_hang: bool,
    /// A copy in the kernel, through the pipe of splice(2), is as good as asking this process.
    pub(crate) kernel_copies: bool,
}

impl View {
    /// A view of the directory that `source` names. An `O_PATH` descriptor will do; it must have
    /// been opened before anything is mounted over the directory.
    ///
    /// # Errors
    /// [`OpenError`] when `source` is no directory, cannot be looked at, or `/proc` is missing.
    pub fn open(source: OwnedFd, config: Config) -> Result<Arc<Self>, OpenError> {
        let root = lower::stat_fd(source.as_fd()).map_err(OpenError::Unreadable)?;
        if root.file_type() != FileType::Directory {
            return Err(OpenError::NotADirectory);
        }
        let on_overlay = probe::is_overlay(source.as_fd());
        if on_overlay {
            overlays::add(root.mount_id());
        }
        let twins = on_overlay.then(Twins::new);
        if borders::is_kernel_file_system(source.as_fd()) {
            return Err(OpenError::KernelFileSystem);
        }
        lower::stat_at(source.as_fd(), lower::ProcPath::of(source.as_fd()).as_c_str())
            .map_err(OpenError::NoProc)?;
        let found = config.found.as_deref().unwrap_or(&source).as_fd();
        let mount = lower::stat_fd(found).map_err(OpenError::Unreadable)?.mount_id();
        let path_at_start = lower::path_of(found).zip(MountPoint::of(mount));
        let below = || {
            let (place, _) = path_at_start.as_ref()?;
            Some(mounts::below(&mounts::read().ok()?, Path::new(OsStr::from_bytes(place))))
        };
        let found = config.found.clone().map(|found| (found, below().unwrap_or_default()));
        let stack_depth = probe::stack_depth(source.as_fd());
        let may_hang = probe::may_hang(source.as_fd());
        let lower_judges_callers = probe::judges_callers(source.as_fd());
        let reserves_by_user = probe::reserves_by_user(source.as_fd());
        let kernel_copies = !probe::may_share_blocks(source.as_fd());
        let (watch, watch_reason) = watch(&config)?;
        let small = Small::new(&config, watch.is_some(), source.as_fd(), root.dev());
        let max = config.max_descriptors.unwrap_or_else(probe::max_descriptors);
        let links = Links::new(probe::workers());
        let tells_names_apart = config.policy.tells_names_apart();
        let caseless = OnceLock::new();
        if tells_names_apart && let Some(place) = probe::caseless(source.as_fd(), mount) {
            return Err(OpenError::Caseless(place));
        }
        if tells_names_apart || config.neighbours.is_some() {
            let told = config.on_search;
            let progress = move |names| told.iter().for_each(|tell| tell(names));
            let found = links.begin(source.as_fd(), Some(&progress));
            if tells_names_apart {
                let found = found.as_deref().map(probe::is_caseless);
                if let Some(place) = caseless.get_or_init(|| found) {
                    return Err(OpenError::Caseless(place.clone()));
                }
            }
        }
        let callers = config.callers.unwrap_or_else(|| Arc::new(ProcCallers::default()));
        let powers = Powers::of_this_process(Arc::clone(&callers));
        let road = Road::new(powers.clone());
        if config.policy.makes_bytes() {
            road.start().map_err(OpenError::WorkQueues)?;
        }
        let covered = config.mount_points.iter();
        let covered = covered.filter_map(|path| lower::key_beneath(source.as_fd(), path).ok());
        let covered: Vec<_> = covered.collect();
        let anchored = config.native.iter().chain(&config.mount_points).cloned().collect();
        let fds = Arc::new(Descriptors::new(source, on_overlay, Budget::new(max)));
        let place = Arc::new(Place {
            table: Arc::new(Table::new(&root, anchored)),
            connection: Arc::default(),
            root: Arc::clone(fds.root()),
            links: Arc::new(links),
            moving: Arc::new(Moving::default()),
            policies: Arc::new(Policies::new(config.policy)),
            fresh: config.attr_timeout,
            mount_points: config.mount_points.clone(),
        });
        if let Some(neighbours) = &config.neighbours {
            neighbours.add(&place);
        }
        let policies = Arc::clone(&place.policies);
        let contents = Contents::new(config.seal_keys, config.audit.clone());
        let contents = contents.map_err(OpenError::Thread)?;
        let sweeper = Sweeper::start(probe::workers(), max).map_err(OpenError::Thread)?;
        let closer = Closer::start(Arc::clone(fds.root()), fds.max()).map_err(OpenError::Thread)?;
        let locks = Locks::new().map_err(OpenError::Descriptor)?;
        Ok(Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            table: Arc::clone(&place.table),
            fds,
            watch,
            watch_reason,
            admission: Admission::new(policies, config.neighbours.is_some(), callers),
            paths: Paths::default(),
            powers,
            attr_timeout: config.attr_timeout,
            entry_timeout: config.entry_timeout,
            root_dev: root.dev(),
            is_read_only: config.is_read_only,
            found,
            path_at_start,
            reserves_by_user,
            lower_may_refuse: may_hang,
            lower_judges_callers,
            passthrough: Passthrough::default(),
            contents,
            road,
            small,
            ahead: Ahead::default(),
            sweeper,
            closer,
            dropper: Arc::new(Dropper::new(Arc::clone(&place.connection))),
            writers: Writers::default(),
            left_names: LeftNames::default(),
            removed: Removed::default(),
            recent_unlinks: RecentUnlinks::default(),
            raised: Raised::default(),
            files: Handles::new(),
            passthrough_handles: PassthroughHandles::default(),
            dirs: Handles::new(),
            locks,
            pauses: Arc::default(),
            listings: Listings::default(),
            walkers: Walkers::default(),
            connection: Arc::clone(&place.connection),
            counters: Counters::new(),
            names: Arc::clone(&place.moving),
            arrivals: Arrivals::begin(),
            making: Making::default(),
            links: Arc::clone(&place.links),
            caseless,
            place,
            neighbours: config.neighbours,
            twins,
            clock: Instant::now(),
            mount_points: config.mount_points,
            covered,
            only_ids: config.only_ids,
            audit: config.audit,
            stack_depth,
            may_hang,
            kernel_copies,
        }))
    }

    /// The session that this view wants: what to negotiate, and how many threads (`None`: one per
    /// CPU that this process may run on, at least 2, at most 16).
    #[must_use]
    pub fn session_config(&self, threads: Option<usize>) -> SessionConfig {
        let powers = self.powers.clone();
        let mut want = wanted_features();
        if self.admission.policy().tells_callers_apart_at_links() {
            // The kernel would show everybody what one was allowed to read.
            want -= InitFlags::CACHE_SYMLINKS;
        }
        SessionConfig {
            threads: threads.unwrap_or_else(probe::workers),
            reserve: RESERVE,
            may_hang: self.may_hang,
            want,
            max_stack_depth: self.stack_depth,
            spin: SPIN,
            // What is read through the view may be read ahead, and by several requests at a time.
            defer_releases: !self.admission.policy().takes_bytes(),
            on_thread_start: Some(Arc::new(move |_| {
                if let Err(error) = powers.prepare_thread() {
                    tracing::error!(
                        %error,
                        "a worker shares its umask; new files may get wrong modes"
                    );
                }
            })),
            ..SessionConfig::default()
        }
    }

    /// The work queues that serve redacted and sealed files: from the start if the policy has a rule
    /// about such files, else from the first such file on.
    #[must_use]
    pub fn work_queues(&self) -> Option<&tollgate_workqueue::Runtime> {
        self.road.runtime()
    }

    /// The session has ended: makes durable what was written to sealed files.
    pub fn finish(&self) {
        self.contents.finish();
    }

    /// Whether a file got a set-user-ID or set-group-ID bit, or capabilities, through the view. Such
    /// a file may be gone, or have lost them, since.
    #[must_use]
    pub fn has_raised(&self) -> bool {
        self.raised.is_set()
    }

    /// All of [`Config::native`] is mounted that will be.
    pub fn mounts_are_made(&self) {
        self.table.mounts_are_made();
    }

    /// Where the lower directory is now, if others have moved it, or one above it, since the start; after
    /// a removal its last path with ` (deleted)`. The file system is not asked.
    #[must_use]
    pub fn moved_to(&self) -> Option<PathBuf> {
        let now = lower::path_of(self.found())?;
        let (before, mount) = self.path_at_start.as_ref()?;
        // Where its mount was moved or detached, its path tells nothing.
        let is_elsewhere = *before != now && mount.is_where_it_was();
        is_elsewhere.then(|| PathBuf::from(OsString::from_vec(now)))
    }

    /// A path that leads to the lower directory now: `at_start`, or else the one that the kernel has for
    /// it. None where neither does, as after its removal, or where something is mounted over it.
    #[must_use]
    pub fn path_now(&self, at_start: &Path) -> Option<PathBuf> {
        let root = rustix::fs::fstat(self.fds.root()).ok()?;
        let leads_there = |path: &Path| {
            let found = std::fs::metadata(path);
            found.is_ok_and(|found| (found.dev(), found.ino()) == (root.st_dev, root.st_ino))
        };
        if leads_there(at_start) {
            return Some(at_start.to_owned());
        }
        let now = PathBuf::from(OsString::from_vec(lower::path_of(self.found())?));
        leads_there(&now).then_some(now)
    }

    /// The lower directory where the kernel has a path of it.
    pub(crate) fn found(&self) -> BorrowedFd<'_> {
        self.found.as_ref().map_or(self.fds.root(), |(found, _)| found).as_fd()
    }

    /// What was mounted below the lower directory at the start, if the view is of a copy of that.
    pub(crate) fn copied_mounts(&self) -> Option<&[Mount]> {
        self.found.as_ref().map(|(_, mounts)| mounts.as_slice())
    }

    /// State at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            counts: self.counters.counts(),
            nodes: self.table.len(),
            descriptors_used: self.fds.used(),
            descriptors_max: self.fds.max(),
            shares: self.shares(),
            userspace_handles: self.files.len(),
            directory_handles: self.dirs.len() + self.listings.len(),
            locks: self.locks.status(),
            links: self.links.status(),
            watch: self.watch.as_ref().map(Watch::status).unwrap_or_default(),
            masked: self.contents.masked(),
            passthrough: self.passthrough.is_available(),
            fallbacks: self.passthrough.fallbacks(),
            unavailable: self.unavailable(),
        }
    }

    fn shares(&self) -> Vec<ShareStatus> {
        let waits = self.locks.shares().into_iter().chain([self.pauses.shares()]);
        self.fds.shares().into_iter().chain(waits).collect()
    }

    fn unavailable(&self) -> Vec<Unavailable> {
        let mut missing = Vec::new();
        if let Some(reason) = self.passthrough.reason() {
            missing.push(Unavailable { feature: "passthrough".into(), reason: reason.into() });
        }
        if let Some(reason) = &self.watch_reason {
            let feature = "watching for changes behind the view".into();
            missing.push(Unavailable { feature, reason: reason.clone() });
        }
        // Asked, it would become the one server that writes them.
        let refuses = || self.contents.refuses_writers();
        if let Some(errno) = if self.is_read_only { None } else { refuses() } {
            let reason = match errno {
                Errno::WOULDBLOCK => ANOTHER_WRITES.into(),
                errno => format!("the lock of who writes them cannot be had: {errno}"),
            };
            missing.push(Unavailable { feature: WRITING_SEALED.into(), reason });
        }
        missing.extend(self.mounts_not_shown());
        if let Some(reason) = self.links.incomplete() {
            missing.push(Unavailable { feature: "every name of hard links".into(), reason });
        }
        if !self.powers.may_switch() {
            missing.push(Unavailable {
                feature: "callers other than the server's user".into(),
                reason: "the server does not run as root, so what they make could not be theirs"
                    .into(),
            });
        }
        missing
    }

    pub(crate) fn count(&self, req: &Request<'_>, count: Count) {
        self.counters.add(req.worker(), count, 1);
        if let Some(class) = count.class() {
            req.set_class(class);
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        self.table.get(id)
    }

    /// Attributes of `node`, by descriptor if it has one, else by name with its identity checked.
    pub(crate) fn stat(&self, node: &Arc<Node>) -> Result<Stat, Errno> {
        if node.is_root() {
            return lower::stat_fd(self.fds.root().as_fd());
        }
        let kept = node.fd.lock().clone();
        if let Some(fd) = kept {
            return lower::stat_fd(fd.as_fd());
        }
        for place in node.places() {
            let Ok(parent) = self.fds.path(&place.parent) else { continue };
            match lower::stat_at(parent.as_fd(), &place.name) {
                Ok(stat) if node.is(&stat.key()) => return Ok(stat),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::STALE)
    }

    /// The entry of `node`, found for thread `asker` in a directory that was watched so when it was looked at.
    pub(crate) fn entry(&self, around: Level, node: &Arc<Node>, stat: &Stat, asker: u32) -> Entry {
        let entry = self.entry_of_link(around, node, stat);
        if self.recent_unlinks.outstanding(node.id, asker) == 0 {
            return entry;
        }
        self.keep_from_kernel(node);
        Entry { attr_valid: Duration::ZERO, ..entry }
    }

    /// The same of a file that was linked just now.
    pub(crate) fn entry_of_link(&self, around: Level, node: &Arc<Node>, stat: &Stat) -> Entry {
        // What carries a mount may go with its name only, and a directory above it can be moved
        // where nobody is told.
        let mut watched = around >= Level::Names && !node.is_anchored();
        if stat.nlink() == 1 {
            node.kept.is_here();
        } else if !node.is_dir() && self.can_hide() {
            // Another name of it may come to hide it, by a move of a directory elsewhere.
            watched = false;
        }
        let attributes = self.counted_attributes(node, stat, around);
        Entry {
            node: node.id,
            generation: 0,
            entry_valid: if watched { LONG.max(self.entry_timeout) } else { self.entry_timeout },
            attr: attributes.attr,
            attr_valid: attributes.valid,
        }
    }

    /// "No such name" in `dir`.
    pub(crate) fn no_entry(&self, dir: &Node) -> Entry {
        let watched = dir.watched.level() >= Level::Names;
        Entry::negative(if watched { NEGATIVE.max(self.entry_timeout) } else { self.entry_timeout })
    }

    /// The same of `name`, which is hidden. For another of its names, as a file may be, that can end
    /// with a change of the other one, of which nobody tells this directory.
    pub(crate) fn hidden_entry(&self, dir: &Arc<Node>, name: Name<'_>, mode: u32) -> Entry {
        let path = self.paths.of_child(dir, name);
        let hides = |path: Vec<u8>| matches!(self.admission.hidden(&path, mode), Hidden::Yes(_));
        if path.is_ok_and(hides) { self.no_entry(dir) } else { Entry::negative(self.entry_timeout) }
    }

    /// The attributes `stat` of `node`, whose directory was watched so before they were looked at, for thread
    /// `asker`.
    pub(crate) fn attributes(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
        around: Level,
        asker: u32,
    ) -> Attributes {
        let mut attributes = self.counted_attributes(node, stat, around);
        let outstanding = self.recent_unlinks.outstanding(node.id, asker);
        if outstanding > 0 {
            attributes.valid = Duration::ZERO;
            // The count of names must not be kept where it can come to 0; nothing else is, then.
            if outstanding >= stat.nlink() {
                self.keep_from_kernel(node);
            }
        }
        attributes
    }

    /// The same in reply to a request during which the kernel lets nobody remove a name of `node`, so that it
    /// has counted all that went before.
    pub(crate) fn counted_attributes(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
        around: Level,
    ) -> Attributes {
        Attributes { attr: self.shown(node, stat), valid: self.attr_valid(node, stat, around) }
    }

    /// The kernel does not take the attributes of `node` from replies to requests that it has sent by now; it
    /// asks for them when it needs them.
    fn keep_from_kernel(&self, node: &Node) {
        if let Some(connection) = self.connection.get() {
            let _ = connection.invalidate_inode(node.id, -1, 0);
        }
    }

    /// The attributes of `node` that callers see: of a sealed file the size of the plain one.
    pub(crate) fn shown(&self, node: &Arc<Node>, stat: &Stat) -> Attr {
        let mut attr = stat.attr(self.root_dev);
        // Of its owner the group says nothing about rights.
        if let Some((_, gid)) = self.only_ids.filter(|(uid, _)| *uid == attr.uid) {
            attr.gid = gid;
        }
        if self.contents.has_keys() && node.kind == FileType::RegularFile {
            let rule = || {
                let domain = self.domain(node, stat)?;
                domain.map(|domain| Ok((self.fds.path_once(node)?, domain))).transpose()
            };
            if let Some(shown) = self.contents.shown(node, stat.version(), rule) {
                attr.size = shown.size;
                attr.mtime = shown.modified.unwrap_or(attr.mtime);
            }
        }
        attr
    }

    /// What the rules bind a sealed file to; `None` if they do not seal it.
    fn domain(&self, node: &Arc<Node>, stat: &Stat) -> Result<Option<Arc<str>>, Errno> {
        let facts = InodeFacts { kind: Kind::File, size: stat.size(), head: None };
        let policy = self.admission.policy();
        let mut made = Made::default();
        for path in self.paths.of(node)? {
            let rules = policy.at(&path);
            if rules.mode(&facts).0 != Mode::Sealed {
                return Ok(None);
            }
            rules.made(&facts, &mut made);
        }
        let mut domains = made.domains.into_iter();
        Ok(domains.next().filter(|_| domains.next().is_none()))
    }

    /// How long the kernel may cache the attributes of `node`: of what is watched, until a change is
    /// reported. Not at all while a file may be written through a mapping of the lower file, of
    /// which the kernel's inode in the view hears nothing.
    pub(crate) fn attr_valid(&self, node: &Node, stat: &Stat, around: Level) -> Duration {
        if node.mappable.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        if node.is_dir() && node.watched.level() >= Level::Names {
            return LONG.max(self.attr_timeout);
        }
        if self.keeps_attributes(node, stat, around) {
            return FILES.max(self.attr_timeout);
        }
        self.attr_timeout
    }

    /// Whether each change of a file is reported: it has one name, in a directory that is watched,
    /// and no other can be given to it unnoticed. Without passthrough the kernel compares pages by
    /// the attributes, and a mapping of others is not reported.
    fn keeps_attributes(&self, node: &Node, stat: &Stat, around: Level) -> bool {
        let Some(watch) = &self.watch else { return false };
        if stat.nlink() != 1 {
            node.kept.changed(true);
            return false;
        }
        self.may_keep_attributes(node, around)
            && !node.kept.is_elsewhere()
            && node.kept.keep_if(|| watch.reports(node) && !node.kept.is_compared())
    }

    /// Whether attributes of `node` would be kept, if each change of it were reported.
    fn may_keep_attributes(&self, node: &Node, around: Level) -> bool {
        around == Level::Files
            && matches!(node.kind, FileType::RegularFile | FileType::Symlink)
            && !node.kept.is_compared()
            && self.attr_timeout >= LINGER
            && self.passthrough.is_available()
    }

    /// The connection stands: from now on what is stale can be dropped.
    pub(crate) fn start_watch(&self, connection: &Connection) {
        let (table, fds) = (Arc::clone(&self.table), Arc::clone(&self.fds));
        if let Err(error) = self.left_names.start(connection.clone(), table, fds) {
            tracing::warn!(%error, "no thread for names that are left; they expire as configured");
        }
        let Some(watch) = &self.watch else { return };
        let tree = watch::Tree {
            table: Arc::clone(&self.table),
            fds: Arc::clone(&self.fds),
            links: Arc::clone(&self.links),
        };
        if let Err(error) = watch.start(connection.clone(), tree) {
            tracing::warn!(%error, "no thread for watching; names and attributes expire as configured");
        }
    }

    /// From now on small files are read before they are opened, where that can go on beside the
    /// program that opens them.
    pub(crate) fn start_reading_ahead(&self) {
        let several_cpus = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        if !self.small.is_on() || !several_cpus {
            return;
        }
        let (table, fds) = (Arc::clone(&self.table), Arc::clone(&self.fds));
        let view = Weak::clone(&self.own);
        let hand_over = move |dir: &_, name: &_, next| view.upgrade()?.read_ahead(dir, name, next);
        let tree = Tree { table, fds, dev: self.root_dev };
        if let Err(error) = self.ahead.start(tree, Box::new(hand_over)) {
            tracing::warn!(%error, "no thread for reading ahead; small files are read when they are opened");
        }
    }

    /// The kernel comes back to `dir`, or lists it: from now on it is watched.
    pub(crate) fn watch_dir(&self, dir: &Arc<Node>) {
        if let Some(watch) = &self.watch
            && watch.would_raise(dir)
            && dir.key.dev() == self.root_dev
            && let Ok(fd) = self.fds.path(dir)
        {
            watch.raise(dir, fd.as_fd(), c".", || true);
        }
    }

    /// `node` is listed as `name` in the directory that `dir` names, which was watched so before: it
    /// is watched, too, and its attributes are those of `stat` or, if it was not watched before, read
    /// again.
    pub(crate) fn watch_child(
        &self,
        node: &Node,
        (dir, around): (BorrowedFd<'_>, Level),
        name: &CStr,
        stat: Stat,
    ) -> Stat {
        let Some(watch) = &self.watch else { return stat };
        let mut now = stat;
        let still_there = || match lower::stat_at(dir, name) {
            Ok(again) if node.is(&again.key()) => {
                now = again;
                true
            }
            _ => false,
        };
        if stat.dev() != self.root_dev {
            return stat;
        }
        if node.is_dir() {
            if watch.would_raise(node) {
                watch.raise(node, dir, name, still_there);
            }
        } else if stat.nlink() == 1
            && watch.would_mark(node)
            && self.may_keep_attributes(node, around)
        {
            watch.mark(node, dir, name, still_there);
        }
        now
    }

    /// The kernel asks again about `node`, which is known in one directory, watched so: its attributes
    /// can be kept from now on.
    pub(crate) fn mark_asked(&self, node: &Node, around: Level) {
        if let Some(watch) = &self.watch
            && watch.would_mark(node)
            && node.key.dev() == self.root_dev
            && self.may_keep_attributes(node, around)
            && let Some(place) = node.place()
            && let Ok(dir) = self.fds.path(&place.parent)
        {
            let still_there = || {
                let now = lower::stat_at(dir.as_fd(), &place.name);
                now.is_ok_and(|now| node.is(&now.key()) && now.nlink() == 1)
            };
            watch.mark(node, dir.as_fd(), &place.name, still_there);
        }
    }

    /// This process serves `node`, which would have been served by the kernel: its attributes are no
    /// longer kept, because the kernel compares pages by them.
    pub(crate) fn serves_pages(&self, node: &Node) {
        if node.kept.compare()
            && node.kept.is_kept()
            && let Some(connection) = self.connection.get()
        {
            let _ = connection.invalidate_inode(node.id, -1, 0);
        }
    }

    /// A file in `dir` is written through the view.
    pub(crate) fn written_in(&self, dir: &Arc<Node>) {
        if let Some(watch) = &self.watch {
            watch.written(dir);
        }
    }
}

/// Watches as `config` wants it; else the reason why not.
fn watch(config: &Config) -> Result<(Option<Watch>, Option<String>), OpenError> {
    let wanted = match config.watch {
        WatchMode::Off => return Ok((None, Some("switched off".into()))),
        WatchMode::Auto if config.attr_timeout.is_zero() => {
            return Ok((None, Some("attributes are not cached at all".into())));
        }
        mode => mode,
    };
    match Watch::new(config.watch_after) {
        Ok(watch) => Ok((Some(watch), None)),
        Err(errno) if wanted == WatchMode::On => Err(OpenError::Watch(errno)),
        Err(errno) => Ok((None, Some(format!("fanotify cannot be used: {errno}")))),
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

/// What this view can honour.
fn wanted_features() -> InitFlags {
    InitFlags::ASYNC_READ
        | InitFlags::POSIX_LOCKS
        | InitFlags::FLOCK_LOCKS
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::AUTO_INVAL_DATA
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::POSIX_ACL
        | InitFlags::MAX_PAGES
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::SETXATTR_EXT
        | InitFlags::CREATE_SUPP_GROUP
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::PASSTHROUGH
}

/// Workers that take the place of those that a lower file system which does not answer keeps: so
/// many requests can wait for it, and the rest of the view is still served. They sleep otherwise, and
/// each has a stack and buffers of which no page was touched.
const RESERVE: usize = 30;

/// How long the waiting worker asks again before it sleeps: longer than a program takes from one
/// request to the next, shorter than anything a user would see. See `docs/fuse-transport.md`.
const SPIN: Duration = Duration::from_micros(20);
