//! The standard streams that CMD is handed.
//!
//! Who has a file open for reading alone can open it again for writing, by its name in
//! /proc/self/fd, and change its mode by the descriptor. The fence does not hold that back, nor does
//! the view: the mount that the caller opened it by is neither's. So CMD gets such a file opened
//! again, by a mount of that file alone, which is read-only and attached nowhere.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, Stat, StatVfsMountFlags};
use rustix::mount::OpenTreeFlags;
use rustix::process::WaitOptions;

use super::privilege::enter_mount_namespace;
use super::wire::{Channel, Message, Received};
use crate::escape::shown;
use crate::sys::{self, Forked};
use crate::{messages, tree};

/// By their numbers.
const NAMES: [&str; 3] = ["input", "output", "error"];
/// Of `null`, `zero`, `full`, `random` and `urandom`, which are all of this number's kind.
const MEMORY_DEVICES: (u32, &[u32]) = (1, &[3, 5, 7, 8, 9]);

/// Refuses what would be a door into the raw tree as a standard stream.
///
/// # Errors
/// When there is one.
pub(super) fn refuse_doors() -> anyhow::Result<()> {
    for (number, name) in NAMES.iter().enumerate() {
        let stream = stream(number);
        if tree::is_directory(stream) {
            bail!(
                "standard {name} is a directory, which would be a way past the view; redirect it"
            );
        }
        if rustix::fs::fcntl_getfl(stream).is_ok_and(|flags| flags.contains(OFlags::PATH)) {
            bail!(
                "standard {name} is a place and not open (O_PATH): CMD could open it as it likes, \
                 past the view; redirect it"
            );
        }
    }
    Ok(())
}

/// The caller's own descriptors, where this process and CMD have others in their place.
#[derive(Debug)]
pub(super) struct Streams(Vec<Replaced>);

#[derive(Debug)]
struct Replaced {
    number: usize,
    callers: OwnedFd,
    /// Where the caller was in the file, if there are places in it.
    began_at: Option<u64>,
}

impl Streams {
    /// From now on, files that are open for reading alone are so by read-only mounts, as are the
    /// nodes of devices that hold nothing. What cannot be had is warned of.
    ///
    /// # Errors
    /// When such a mount cannot be had, and `is_required`.
    pub(super) fn narrowed(is_required: bool) -> anyhow::Result<Self> {
        let mut streams = Self(Vec::new());
        let mut left = Vec::new();
        for number in 0..NAMES.len() {
            // A closed one is nobody's.
            let Some(kind) = kind(number).unwrap_or(None) else { continue };
            match narrowed(number) {
                Ok(opened) => streams.replace(number, &opened)?,
                Err(error) if kind == Kind::File => left.push((number, error)),
                Err(_) => {}
            }
        }
        if !left.is_empty() {
            // Who may not mount may do it in a user namespace.
            for (number, opened) in by_helper(&left)? {
                streams.replace(number, &opened)?;
                left.retain(|(one, _)| *one != number);
            }
        }
        for (number, error) in left {
            tell(number, &error, is_required)?;
        }
        Ok(streams)
    }

    fn replace(&mut self, number: usize, opened: &OwnedFd) -> anyhow::Result<()> {
        let callers = rustix::io::fcntl_dupfd_cloexec(stream(number), 3)
            .context("cannot copy a descriptor")?;
        let began_at = rustix::fs::tell(&callers).ok();
        if let Some(place) = began_at {
            rustix::fs::seek(opened, SeekFrom::Start(place)).context("cannot seek")?;
        }
        match number {
            0 => rustix::stdio::dup2_stdin(opened),
            1 => rustix::stdio::dup2_stdout(opened),
            _ => rustix::stdio::dup2_stderr(opened),
        }
        .context("cannot replace a standard stream")?;
        self.0.push(Replaced { number, callers, began_at });
        Ok(())
    }
}

/// Whoever shares the descriptor with the caller, a shell that reads its script from it for one,
/// goes on where CMD stopped.
impl Drop for Streams {
    fn drop(&mut self) {
        for Replaced { number, callers, began_at } in &self.0 {
            let now = rustix::fs::tell(stream(*number)).ok();
            if let Some(place) = now.filter(|now| Some(*now) != *began_at) {
                let _ = rustix::fs::seek(callers, SeekFrom::Start(place));
            }
        }
    }
}

/// What is not handed on as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A file that is open for reading alone, on a mount that can be written.
    File,
    /// The node of a device that holds nothing, so that it may be opened once more.
    Device,
}

fn kind(number: usize) -> rustix::io::Result<Option<Kind>> {
    let stream = stream(number);
    let stat = rustix::fs::fstat(stream)?;
    let (major, minors) = MEMORY_DEVICES;
    let is_of_memory = || {
        let minor = rustix::fs::minor(stat.st_rdev);
        rustix::fs::major(stat.st_rdev) == major && minors.contains(&minor)
    };
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if mode_of(stream)?.0 == OFlags::RDONLY => Kind::File,
        FileType::CharacterDevice if is_of_memory() => Kind::Device,
        _ => return Ok(None),
    };
    let is_read_only = rustix::fs::fstatvfs(stream)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok((!is_read_only).then_some(kind))
}

/// How it is open: to be read or written, and what holds for that.
fn mode_of(stream: BorrowedFd<'_>) -> rustix::io::Result<(OFlags, OFlags)> {
    let flags = rustix::fs::fcntl_getfl(stream)?;
    let kept = OFlags::APPEND | OFlags::NONBLOCK | OFlags::DIRECT | OFlags::NOATIME;
    Ok((flags & OFlags::RWMODE, flags & kept))
}

/// The same, opened by a read-only mount of its own, with the privilege that this process has.
fn narrowed(number: usize) -> anyhow::Result<OwnedFd> {
    let stream = stream(number);
    // Where it was opened in another mount namespace, only its path leads to a mount of this one.
    read_only(stream, stream).or_else(|_| by_path(number))
}

fn by_path(number: usize) -> anyhow::Result<OwnedFd> {
    let stream = stream(number);
    let path = path(number)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(CWD, &path, flags, Mode::empty())?;
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    ensure!(
        identity(rustix::fs::fstat(&found)?) == identity(rustix::fs::fstat(stream)?),
        "another file is at its path"
    );
    read_only(found.as_fd(), stream)
}

fn path(number: usize) -> std::io::Result<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{number}"))
}

/// Opens what `place` names as `stream` is open, by a read-only mount of it alone.
fn read_only(place: BorrowedFd<'_>, stream: BorrowedFd<'_>) -> anyhow::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = rustix::mount::open_tree(place, "", flags)?;
    sys::restrict_mount(mount.as_fd(), libc::MOUNT_ATTR_RDONLY)?;
    let (access, kept) = mode_of(stream)?;
    let flags = access | kept | OFlags::CLOEXEC | OFlags::NOCTTY;
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// What a process in a mount namespace of its own could open of these.
fn by_helper(left: &[(usize, anyhow::Error)]) -> anyhow::Result<Vec<(usize, OwnedFd)>> {
    let (channel, own) = Channel::pair()?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => {
            // Where it fails, nothing comes.
            let _ = help(&own, left);
            sys::exit_now(0)
        }
        Forked::Parent(helper) => {
            drop(own);
            let mut opened = Vec::new();
            while let Some(received) = channel.receive()? {
                let Received { message: Message::Stream(number), fd: Some(fd), .. } = received
                else {
                    bail!("unexpected {:?}", received.message);
                };
                opened.push((usize::try_from(number)?, fd));
            }
            // Its number may be another's where the kernel forgets children.
            let _ = rustix::process::waitpid(Some(helper), WaitOptions::empty());
            Ok(opened)
        }
    }
}

fn help(channel: &Channel, left: &[(usize, anyhow::Error)]) -> anyhow::Result<()> {
    enter_mount_namespace()?;
    for (number, _) in left {
        if let Ok(opened) = by_path(*number) {
            let number = i32::try_from(*number)?;
            channel.send(&Message::Stream(number), Some(opened.as_fd()))?;
        }
    }
    Ok(())
}

/// Says what CMD can do with a stream that stays as it is.
fn tell(number: usize, error: &anyhow::Error, is_required: bool) -> anyhow::Result<()> {
    // Nobody finds it by a name: a here-document. Somebody else may have it open.
    let is_nameless = rustix::fs::fstat(stream(number)).is_ok_and(|stat| stat.st_nlink == 0);
    if is_nameless && !is_required {
        return Ok(());
    }
    let path = path(number).unwrap_or_default();
    let text = format!(
        "standard {}, `{}`, cannot be opened by a read-only mount ({}): CMD can open it again for \
         writing, and change its mode, where its user may; `{} | tollgate run ...` keeps it",
        NAMES[number],
        shown(&path),
        messages::in_words(error),
        if is_nameless { "cat" } else { "cat FILE" }
    );
    ensure!(!is_required, "--require fence: {text}");
    messages::warn(&text);
    Ok(())
}

fn stream(number: usize) -> BorrowedFd<'static> {
    match number {
        0 => rustix::stdio::stdin(),
        1 => rustix::stdio::stdout(),
        _ => rustix::stdio::stderr(),
    }
}
