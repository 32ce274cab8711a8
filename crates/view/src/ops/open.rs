//! Opening and closing files: where the I/O mode is decided.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use tollgate_fuse::{
    BackingId, Caller, Connection, FileHandle, NodeId, OpenReply, Opened, Request,
};
use tollgate_policy::Mode;

use crate::admission::Subject;
use crate::content::asker::asked_by;
use crate::content::open::How;
use crate::content::to_open::ToOpen;
use crate::handles::{
    Kind, UserFile, executes, has_descriptor, is_in_place, is_written_below, to_execute,
};
use crate::locks::wants_closes;
use crate::lower::{self, Stat};
use crate::mode::{Io, IoMode};
use crate::ops::access::Access;
use crate::ops::lower_file::LowerFile;
use crate::ops::record::access_of;
use crate::passthrough::NotRegistered;
use crate::paths::KnownPaths;
use crate::road::Made;
use crate::small::only_reads;
use crate::stats::Count;
use crate::table::{Node, Place};
use crate::view::View;

/// `STATX_ATTR_IMMUTABLE` and `STATX_ATTR_APPEND`.
const IMMUTABLE: u64 = 0x10;
const APPEND_ONLY: u64 = 0x20;

/// Where a file is, and how often it and the directories above it had moved by then: it may have been
/// elsewhere in between, and come back.
#[derive(PartialEq, Eq)]
struct Whereabouts {
    moves: u64,
    renames: u64,
    paths: KnownPaths,
}

/// How often a file is judged anew that is moved while it is opened. Then it is busy. After the first looks
/// renames wait, but for those that have begun.
const LOOKS_WHILE_MOVED: u32 = 20;
const LOOKS_BESIDE_MOVES: u32 = 5;

/// How often, and how far apart, a file is looked for under its name that may get it back: `rotate` syncs a
/// directory in between.
const LOOKS_FOR_NAME: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

impl View {
    pub(crate) fn do_open(
        &self,
        req: &Request<'_>,
        id: NodeId,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<Opened, Errno> {
        self.count(req, Count::open);
        let node = self.node(id)?;
        if node.kind != FileType::RegularFile {
            return Err(Errno::NXIO);
        }
        let asked = Asked { req, node: &node, access: Access::new(flags), kill_suidgid };
        let moment = self.names.moment();
        let is_still = || moment.as_ref().is_some_and(|moment| self.names.is_still(moment));
        if let Some(opened) = self.judge_and_open(&asked, None, is_still)? {
            return Ok(opened);
        }
        if self.admission.is_trivial() {
            return self.open_beside_moves(|is_still| self.judge_and_open(&asked, None, is_still));
        }
        for look in 0..LOOKS_WHILE_MOVED {
            // Who renames without a pause would overtake each look.
            let _alone = (look >= LOOKS_BESIDE_MOVES).then(|| self.names.hold_off());
            let whereabouts = self.whereabouts(&node)?;
            if let Some(opened) = self.judge_and_open(&asked, Some(&whereabouts), || true)? {
                return Ok(opened);
            }
        }
        Err(self.failed_open(req, &node, "open", asked.access.flags, None, Errno::BUSY))
    }

    /// Asks the policy, and opens the file as it says; `None` if the file got another name in between, by
    /// which it may be judged more strictly: whoever renames or links a file looks whether it is open, and did not
    /// see this one. Also if it was not found then, being on its way. Either `is_still` tells that none was moved
    /// since before, or the file is where it was all the time, since before; no name is moved then until it is
    /// open.
    fn judge_and_open(
        &self,
        asked: &Asked<'_>,
        before: Option<&Whereabouts>,
        is_still: impl Fn() -> bool,
    ) -> Result<Option<Opened>, Errno> {
        let &Asked { req, node, access, kill_suidgid } = asked;
        let (seen, (subject, append_only)) = self.unless_overtaken(|| {
            let seen = self.look_at(node, access)?;
            let admitted = self.admit(req, node, access, seen.as_ref().map(|(_, stat)| stat))?;
            Ok((seen, admitted))
        })?;
        let still = before.map(|_| self.names.write());
        if let Some(before) = before
            && self.whereabouts(node)? != *before
        {
            return Ok(None);
        }
        if access.writes() && self.watch.is_some() {
            node.places().iter().for_each(|place| self.written_in(&place.parent));
        }
        let _copying = access.writes().then(|| self.copying(node));
        let subject = subject.as_ref();
        let opening = Opening { req, node, access, kill_suidgid, subject, seen, append_only };
        let opened = self
            .open_admitted(opening, is_still)
            .map_err(|errno| self.failed_open(req, node, "open", access.flags, subject, errno))?;
        drop(still);
        if let Some(opened) = &opened {
            self.record_open(req, node, "open", access.flags, opened, subject);
        }
        Ok(opened)
    }

    fn whereabouts(&self, node: &Arc<Node>) -> Result<Whereabouts, Errno> {
        let (moves, renames) = (node.moves(), self.paths.renames());
        Ok(Whereabouts { moves, renames, paths: self.paths.of(node)? })
    }

    /// Opens a file that the policy allows to be opened, if `is_still` says so once nobody else opens it.
    fn open_admitted(
        &self,
        opening: Opening<'_, '_>,
        is_still: impl Fn() -> bool,
    ) -> Result<Option<Opened>, Errno> {
        let Opening { node, access, .. } = opening;
        // Held over system calls on purpose: two openers must not register two backing files.
        let mut io = node.io.lock();
        if !self.admission.is_trivial() && !is_still() {
            return Ok(None);
        }
        // For who opens to write the kernel looks at this before it asks, for others afterwards.
        if access.only_empties() && io.is_executed() {
            return Err(Errno::TXTBSY);
        }
        if is_gone(node, opening.seen_as())
            && !self.removed.asks_again(node.id, opening.req.caller().pid)
        {
            return Err(Errno::STALE);
        }
        let opened = match self.open_locked(opening, &mut io) {
            // It was looked for by a name that it had left. What was cut by then is cut once more.
            Err(Errno::STALE) if !is_still() => return Ok(None),
            opened => opened?,
        };
        if !access.executes() {
            return Ok(Some(opened));
        }
        io.executed();
        Ok(Some(Opened { handle: to_execute(opened.handle), ..opened }))
    }

    /// The same under the lock of the file's state.
    fn open_locked(
        &self,
        opening: Opening<'_, '_>,
        io: &mut MutexGuard<'_, Io>,
    ) -> Result<Opened, Errno> {
        let Opening { req, node, access, kill_suidgid, subject, seen, append_only } = opening;
        let how = subject.and_then(How::of);
        if !io.may_be_made(how.as_ref().map(How::made)) {
            return Err(Errno::BUSY);
        }
        // Before anything is changed: who cannot open the file must not empty it.
        self.leave_out_of_reach(node, io)?;
        if append_only == Some(true) {
            leave_append_only(node, io, access)?;
        }
        let at = seen.as_ref().map(|(fd, _)| fd);
        // Who executes a file need not be able to read it.
        if !access.executes() {
            let judged = |flags| self.must_be_open_to(req.caller(), node, at, flags);
            match judged(access.lower()) {
                // An append-only file opens with `O_APPEND` alone.
                Err(Errno::PERM) if access.only_appends() => {
                    judged(access.lower() | OFlags::APPEND)
                }
                opens => opens,
            }?;
        }
        let mode = self.mode_of(io, subject);
        if how.is_none()
            && (mode == IoMode::Passthrough || io.is_small())
            && let Some(seen) = seen.clone()
            && let Some(opened) = self.open_small(req, node, io, seen)?
        {
            return Ok(opened);
        }
        let mut lower = LowerFile::of(self, node, None, seen.map(|(fd, _)| fd));
        lower.append_only = append_only;
        if let Some(how) = how {
            if access.truncates() {
                self.drop_set_ids_of_made(req.caller(), lower.path()?.as_fd(), kill_suidgid)?;
            }
            return self.open_made(req, io, &how, access, &mut lower);
        }
        if access.truncates() {
            // Who gets no descriptor must not have emptied the file.
            let stood = io.backing_id().is_some();
            self.must_open(mode, access, &mut lower)?;
            if mode != IoMode::Passthrough || self.backing(io, &mut lower)?.is_err() {
                lower.open_early(req.caller().uid, access)?;
            }
            let fd = lower.path()?;
            let emptied = self.truncate_as(req.caller(), fd.as_fd(), 0, kill_suidgid);
            // If nobody has it open, nobody would close it.
            if emptied.is_err()
                && !stood
                && let Some(held) = io.retire()
            {
                drop((held, node.take_fd()));
            }
            emptied?;
        }
        self.open_in_mode(req, io, mode, access, &mut lower)
    }

    /// Asks the lower file system as the caller, where that judges callers: all else is opened as this
    /// process. `at`: a descriptor that names the file.
    ///
    /// # Errors
    /// What the caller would get there.
    pub(super) fn must_be_open_to(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        at: Option<&Arc<OwnedFd>>,
        flags: OFlags,
    ) -> Result<(), Errno> {
        if !self.lower_judges_callers {
            return Ok(());
        }
        let path = at.map_or_else(|| self.fds.path_once(node), |fd| Ok(Arc::clone(fd)))?;
        let open = || self.fds.retrying(|| lower::reopen(path.as_fd(), flags));
        self.powers.as_caller(caller, open).map(drop)
    }

    /// The file itself, where it may be opened as a small one: everything that follows then goes by
    /// what it is at this moment.
    fn look_at(
        &self,
        node: &Arc<Node>,
        access: Access,
    ) -> Result<Option<(Arc<OwnedFd>, Stat)>, Errno> {
        let suits = self.small.is_on() && only_reads(access.flags);
        suits.then(|| self.fds.path_and_stat(node)).transpose()
    }

    /// Asks the policy, and checks what the lower open would have; returns what the policy judged,
    /// if it had to be asked. Otherwise the kernel may read the file by itself. Also whether the file is
    /// append-only, if that was looked at.
    fn admit(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        access: Access,
        seen: Option<&Stat>,
    ) -> Result<(Option<Subject<'_>>, Option<bool>), Errno> {
        let trivial = self.admission.is_trivial();
        if trivial && !access.writes() {
            return Ok((None, seen.map(is_append_only)));
        }
        let stat = seen.map_or_else(|| self.stat(node), |stat| Ok(*stat))?;
        let reads = !access.writes();
        let subject = if trivial { None } else { self.subject_to_open(node, &stat, reads)? };
        if let Some(subject) = &subject {
            let what = ("open", subject.path(), access_of(access.flags));
            let permitted = self.permit_detailed(req, subject, access.asked(), what);
            self.note_if_hidden(node, permitted.err());
            permitted?;
            if access.writes() {
                self.must_not_part(req, node, subject, "open")?;
            }
        }
        if access.writes() {
            refuse_protected(&stat, access).map_err(|errno| {
                self.failed_open(req, node, "open", access.flags, subject.as_ref(), errno)
            })?;
        }
        // Also where a rule redacts: masking shows all other bytes as they lie below.
        let is_sealed = matches!(subject.as_ref().and_then(How::of), Some(How::Sealed(_)));
        if !is_sealed {
            let cut = access.truncates();
            self.refuse_misplaced(req.caller(), node, &stat, cut).map_err(|errno| {
                self.failed_open(req, node, "open", access.flags, subject.as_ref(), errno)
            })?;
        }
        Ok((subject, Some(is_append_only(&stat))))
    }

    /// Lets go of a backing file that was registered by a name which has left DIR since, while the file has
    /// another one: the kernel opens backing files anew for each opener, as this process, which may
    /// open nothing there.
    ///
    /// # Errors
    /// `EIO` while a handle is open: the kernel takes no other backing file then.
    fn leave_out_of_reach(
        &self,
        node: &Arc<Node>,
        io: &mut MutexGuard<'_, Io>,
    ) -> Result<(), Errno> {
        if io.backing_id().is_none() || !self.fds.is_out_of_reach(node) {
            return Ok(());
        }
        // Closes the backing file, and gives the descriptor back, under the lock: nobody may register
        // the file meanwhile.
        let held = io.retire().ok_or(Errno::IO)?;
        drop((held, node.take_fd()));
        Ok(())
    }

    /// The mode that holds while the file is open, else the one that the policy asks for now.
    pub(super) fn mode_of(&self, io: &Io, subject: Option<&Subject<'_>>) -> IoMode {
        let wanted = || subject.map_or(Mode::Passthrough, Subject::mode);
        io.mode().unwrap_or_else(|| self.passthrough.io_mode(wanted()))
    }

    /// Opens a file in passthrough first as this process, where the lower file system may refuse that: the
    /// kernel opens the backing file while the caller waits, and says EIO for whatever error.
    fn must_open(
        &self,
        mode: IoMode,
        access: Access,
        lower: &mut LowerFile<'_>,
    ) -> Result<(), Errno> {
        let may_fail = mode == IoMode::Passthrough && self.lower_may_refuse && lower.fd.is_none();
        if may_fail { lower.real(access).map(drop) } else { Ok(()) }
    }

    pub(super) fn open_in_mode(
        &self,
        req: &Request<'_>,
        io: &mut MutexGuard<'_, Io>,
        mode: IoMode,
        access: Access,
        lower: &mut LowerFile<'_>,
    ) -> Result<Opened, Errno> {
        if !access.truncates() {
            self.must_open(mode, access, lower)?;
        }
        match mode {
            IoMode::Passthrough => match self.backing(io, lower)? {
                Ok(id) => {
                    self.count(req, Count::open_passthrough);
                    io.opened(IoMode::Passthrough, access.uses());
                    let closes = wants_closes(access.flags, lower.node.locks.get());
                    let no_flush = if closes { OpenReply::empty() } else { OpenReply::NOFLUSH };
                    let (in_place, writes) = (access.is_in_place(), access.writes_through());
                    if in_place {
                        self.mappable(lower.node);
                    }
                    if writes {
                        io.opened_to_write();
                        self.keep_writable(io, lower);
                    }
                    let kind = Kind { flushes: closes, in_place, writes };
                    Ok(Opened {
                        handle: self.passthrough_handles.next(req.worker(), kind),
                        flags: OpenReply::PASSTHROUGH | no_flush,
                        backing: Some(id),
                    })
                }
                // The mode holds while anyone has the file open: too late for another.
                Err(_) if io.is_open() => Err(Errno::IO),
                Err(why) => {
                    self.passthrough.registration_failed(&why, self.others_register());
                    if matches!(why, NotRegistered::OnlyRead) {
                        self.count(req, Count::open_only_read);
                    }
                    self.open_here(req, io, IoMode::Cached, access, lower)
                }
            },
            mode => self.open_here(req, io, mode, access, lower),
        }
    }

    /// The file may be written through a mapping from now on. Nobody tells the kernel that its
    /// times change then, so it must not keep them, nor have kept them.
    fn mappable(&self, node: &Node) {
        if node.mappable.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(connection) = self.connection.get()
        {
            // Of attributes alone: that waits for nothing. `ENOENT` for a file being made is as good.
            let _ = connection.invalidate_inode(node.id, -1, 0);
        }
    }

    /// The backing file that stands, or a new one.
    ///
    /// # Errors
    /// The outer error is about the lower file, which could not be found; the inner one is the
    /// kernel's, which did not take the registration, or says that none was possible.
    fn backing(
        &self,
        io: &mut MutexGuard<'_, Io>,
        lower: &mut LowerFile<'_>,
    ) -> Result<Result<BackingId, NotRegistered>, Errno> {
        if let Some(id) = io.backing_id() {
            return Ok(Ok(id));
        }
        // INIT comes before every other request.
        let connection = self.connection.get().ok_or(Errno::IO)?;
        let fd = lower.nameable()?;
        let look = || lower::stat_fd(fd.as_fd()).map(|stat| is_append_only(&stat));
        if lower.append_only.map_or_else(look, Ok)? {
            return Ok(Err(NotRegistered::AppendOnly));
        }
        // The root's file system is known; another one below may judge reads and writes by user.
        let by_user = self.reserves_by_user && lower.node.key.dev() == self.root_dev;
        let registered = if connection.has_registrar() {
            if let Err(error) = connection.reach_registrar() {
                return Ok(Err(NotRegistered::Refused(error)));
            }
            match lower.writable(&fd) {
                Some(writable) => io.register(connection, writable, &self.powers, by_user),
                None => return Ok(Err(NotRegistered::OnlyRead)),
            }
        } else {
            io.register(connection, fd.as_fd(), &self.powers, by_user)
        };
        if registered.is_ok() {
            self.keep_found(lower.node, io, || Ok(fd));
        }
        Ok(registered.map_err(NotRegistered::Refused))
    }

    /// `node` is found again without a name while it is open, as long as descriptors are plenty: by
    /// a descriptor that names it. The kernel asks for attributes without saying through which
    /// handle.
    fn keep_found(
        &self,
        node: &Node,
        io: &mut Io,
        named: impl FnOnce() -> Result<Arc<OwnedFd>, Errno>,
    ) {
        if !io.keeps() {
            let Some(held) = self.fds.hold_if_cheap() else { return };
            io.keep(held);
        }
        let mut kept = node.fd.lock();
        if kept.is_none() {
            *kept = named().ok();
        }
    }

    /// The descriptor that is at hand is kept of a file that somebody writes now; without one it is
    /// opened once more, later (see [`crate::writers`]).
    fn keep_writable(&self, io: &mut Io, lower: &mut LowerFile<'_>) {
        if !io.lacks_writable() || !self.others_register() {
            return;
        }
        match lower.fd.take().or_else(|| lower.shown.take()) {
            Some(fd) => {
                if let Some(held) = self.fds.hold_if_cheap() {
                    io.keep_writable(fd, held);
                }
            }
            None => self.writers.opened(&self.fds, io, lower.node),
        }
    }

    /// Whether somebody else registers backing files for this process.
    pub(super) fn others_register(&self) -> bool {
        self.connection.get().is_some_and(Connection::has_registrar)
    }

    /// Opens a file whose bytes the view makes, and which is not open in another way.
    pub(super) fn open_made(
        &self,
        req: &Request<'_>,
        io: &mut MutexGuard<'_, Io>,
        how: &How,
        access: Access,
        lower: &mut LowerFile<'_>,
    ) -> Result<Opened, Errno> {
        let held = self.fds.hold(req.caller().uid)?;
        let is_new = lower.fd.is_some();
        let fd = Arc::new(lower.real(access.made())?);
        if access.writes() && !is_new {
            self.must_lead_here(lower.node)?;
        }
        let path = self.path_for_log(lower.node);
        let (node, writes) = (lower.node, access.writes());
        let begins_anew = access.truncates();
        let asked = (&self.powers, req.caller());
        let file = ToOpen { fd: Arc::clone(&fd), node, is_new, writes, begins_anew, path, asked };
        let appends = access.writes().then(|| io.appends());
        let open = || {
            let content = self.contents.open(file, how)?;
            if access.truncates() {
                content.set_len(0, &|act| act())?;
            }
            Ok(content)
        };
        // The kernel does not hold off who appends, as it does for truncate(2).
        let content = asked_by(req.caller(), || match &appends {
            Some(appends) if access.truncates() => appends.held_off(open),
            _ => open(),
        })?;
        let made = Some(Arc::new(Made::new(content)));
        let opener = Caller { pid: 0, ..req.caller() };
        let mapped = access.writes().then(|| io.mapped_by_writers(access.is_in_place()));
        let file = UserFile {
            fd: Arc::clone(&fd),
            made,
            opener,
            appends,
            append_only: false,
            mapped,
            _held: held,
        };
        let handle = self.files.insert(file);
        io.opened_made(how.made().clone(), access.uses());
        self.keep_found(lower.node, io, || lower.naming(&fd));
        self.count(req, Count::open_userspace);
        let flags = OpenReply::DIRECT_IO | OpenReply::PARALLEL_DIRECT_WRITES;
        Ok(Opened { handle, flags, backing: None })
    }

    /// Whether a file that was opened for writing just now still has a name that it is known by. `seal
    /// rotate` may have put another file there before it was seen to be open, and does not any more
    /// afterwards (`src/seal/replace.rs` has the whole of it). What lost its names in the view itself is
    /// written by who has it alone.
    ///
    /// # Errors
    /// `ESTALE`: the kernel looks the name up again.
    pub(crate) fn must_lead_here(&self, node: &Node) -> Result<(), Errno> {
        let places = node.places();
        let leads_here = |place: &Place| {
            let parent = self.fds.path(&place.parent)?;
            let found = lower::stat_at(parent.as_fd(), &place.name)?;
            Ok::<_, Errno>(self.fds.is_of(node, &found))
        };
        let mut failure = None;
        for place in &places {
            match leads_here(place) {
                Ok(true) => return Ok(()),
                Err(error @ (Errno::MFILE | Errno::NFILE)) => failure = Some(error),
                _ => failure = failure.or(Some(Errno::STALE)),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The same for a sealed file whose attributes or names were changed just now: where `seal rotate` sees
    /// that, it gives the file its name back, which is a matter of milliseconds. `held` is the file: no name
    /// that is known leads to it meanwhile.
    ///
    /// # Errors
    /// `ESTALE`, as above: what was changed is not the file that has the name.
    pub(crate) fn must_lead_here_again(&self, node: &Node, held: impl AsFd) -> Result<(), Errno> {
        for _ in 0..LOOKS_FOR_NAME {
            match self.must_lead_here(node) {
                // Under the temporary name of `rotate`, or moved by others.
                Err(Errno::STALE)
                    if lower::stat_fd(held.as_fd()).is_ok_and(|stat| stat.nlink() > 0) =>
                {
                    std::thread::sleep(BETWEEN_LOOKS);
                }
                leads_here => return leads_here,
            }
        }
        self.must_lead_here(node)
    }

    /// The file, if the rules seal it. To be asked before it is changed: what has lost its name is not
    /// judged, nor found.
    ///
    /// # Errors
    /// When its attributes cannot be read, or its names not be found.
    pub(crate) fn if_sealed(&self, node: &Arc<Node>) -> Result<Option<Arc<OwnedFd>>, Errno> {
        if !self.admission.policy().seals() {
            return Ok(None);
        }
        let subject = self.subject_of_open(node, &self.stat(node)?)?;
        let is_sealed = matches!(How::of(&subject), Some(How::Sealed(_)));
        is_sealed.then(|| self.fds.path_once(node)).transpose()
    }

    /// One of the paths of a file; nothing if it has none.
    pub(crate) fn path_for_log(&self, node: &Arc<Node>) -> Vec<u8> {
        let paths = self.paths.of(node).ok();
        paths.and_then(|paths| paths.into_iter().next()).unwrap_or_default()
    }

    fn open_here(
        &self,
        req: &Request<'_>,
        io: &mut MutexGuard<'_, Io>,
        mode: IoMode,
        access: Access,
        lower: &mut LowerFile<'_>,
    ) -> Result<Opened, Errno> {
        let held = match lower.held.take() {
            Some(held) => held,
            None => self.fds.hold(req.caller().uid)?,
        };
        let fd = Arc::new(lower.real(access)?);
        let handle = self.files.insert(UserFile {
            fd: Arc::clone(&fd),
            made: None,
            opener: Caller { pid: 0, ..req.caller() },
            appends: access.writes().then(|| io.appends()),
            append_only: lower.append_only == Some(true),
            mapped: (access.writes() && mode == IoMode::Direct)
                .then(|| io.mapped_by_writers(access.is_in_place())),
            _held: held,
        });
        io.opened(mode, access.uses());
        self.keep_found(lower.node, io, || lower.naming(&fd));
        let direct = OpenReply::DIRECT_IO | OpenReply::PARALLEL_DIRECT_WRITES;
        let (flags, count) = match mode {
            IoMode::Direct => (direct, Count::open_userspace),
            IoMode::Cached | IoMode::Passthrough => {
                self.serves_pages(lower.node);
                io.is_written_here();
                if access.is_in_place() {
                    io.opened_in_place();
                }
                let joins = io.is_small();
                (OpenReply::empty(), if joins { Count::open_cached } else { Count::open_fallback })
            }
        };
        self.count(req, count);
        Ok(Opened { handle, flags, backing: None })
    }

    pub(crate) fn do_release(&self, req: &Request<'_>, id: NodeId, handle: FileHandle) {
        if has_descriptor(handle) {
            drop(self.files.remove(handle));
        }
        let Ok(node) = self.node(id) else { return };
        self.locks_released(&node, handle);
        if is_in_place(handle) {
            node.mappable.fetch_sub(1, Ordering::Relaxed);
        }
        let writable;
        let lingers = {
            let mut io = node.io.lock();
            writable = if is_written_below(handle) { io.writing_ended() } else { None };
            let was_small = io.is_small();
            if executes(handle) {
                io.execution_ended();
            }
            let lingers = io.closed();
            if was_small && !io.is_open() {
                self.sweeper.closed_small(&node);
            }
            lingers
        };
        drop(writable);
        if lingers {
            self.sweeper.linger(req.worker(), &node);
        }
    }
}

/// Who asks for an open of what.
struct Asked<'a> {
    req: &'a Request<'a>,
    node: &'a Arc<Node>,
    access: Access,
    kill_suidgid: bool,
}

/// An open that the policy allows, with what is known of the file already.
struct Opening<'a, 'p> {
    req: &'a Request<'a>,
    node: &'a Arc<Node>,
    access: Access,
    /// Whoever truncates takes set-user-id and set-group-id away with it.
    kill_suidgid: bool,
    /// What the policy judged, if it had to be asked.
    subject: Option<&'a Subject<'p>>,
    /// The file itself, where it was looked at.
    seen: Option<(Arc<OwnedFd>, Stat)>,
    /// Whether it is append-only, where that was looked at.
    append_only: Option<bool>,
}

impl Opening<'_, '_> {
    fn seen_as(&self) -> Option<&Stat> {
        self.seen.as_ref().map(|(_, stat)| stat)
    }
}

/// What the kernel would not check, as the attributes are those of the lower file. An append-only one is
/// opened for nothing but to append: with a handle to read and write it could be mapped, and stored into.
fn refuse_protected(stat: &Stat, access: Access) -> Result<(), Errno> {
    if stat.has_attribute(IMMUTABLE) || is_append_only(stat) && !access.only_appends() {
        return Err(Errno::PERM);
    }
    Ok(())
}

fn is_append_only(stat: &Stat) -> bool {
    stat.has_attribute(APPEND_ONLY)
}

/// Lets go of the backing file of one that has become append-only since (see [`NotRegistered::AppendOnly`]).
///
/// # Errors
/// `EBUSY` for who is to append while a handle is open: that could be no other then.
fn leave_append_only(
    node: &Node,
    io: &mut MutexGuard<'_, Io>,
    access: Access,
) -> Result<(), Errno> {
    if io.backing_id().is_none() {
        return Ok(());
    }
    match io.retire() {
        // Under the lock, as above.
        Some(held) => drop((held, node.take_fd())),
        None if access.writes() && io.mode() == Some(IoMode::Passthrough) => {
            return Err(Errno::BUSY);
        }
        None => {}
    }
    Ok(())
}

/// Whether a file was removed beneath since the kernel looked it up, though a descriptor still names it
/// that is kept for who has it open, or for the next open. What lost its name in the view is not looked
/// up any more, and opened by who has it alone.
fn is_gone(node: &Node, seen: Option<&Stat>) -> bool {
    if node.place().is_none() {
        return false;
    }
    match seen {
        Some(stat) => stat.nlink() == 0,
        None => {
            let kept = node.fd.lock().clone();
            kept.and_then(|fd| lower::stat_fd(fd.as_fd()).ok())
                .is_some_and(|stat| stat.nlink() == 0)
        }
    }
}
