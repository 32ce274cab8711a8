//! A /dev of CMD's own: what an ordinary program needs, and no other node. Whatever reaches a disk,
//! memory or the keyboard is not there, whatever its name, and does not appear when it is plugged in
//! later. An ordinary user's CMD needs it as root's does: the nodes of the user's other terminals
//! belong to that user, so what is typed there could be read, and what is shown there written.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::mount::MountFlags;

use super::kept::Kept;
use super::places::private;
use crate::sys;

/// Nodes, if the machine has them: the ordinary ones, and those of FUSE, virtual machines, tunnels
/// and graphics processors, which act for their caller alone.
const NODES: &[&str] =
    &["null", "zero", "full", "random", "urandom", "tty", "fuse", "kvm", "net/tun", "kfd", "dxg"];
/// Directories of which some nodes are taken, and how the names of these begin.
const FAMILIES: &[(&str, &str)] = &[("dri", "renderD"), ("", "nvidia"), ("nvidia-caps", "nvidia")];
const LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
const DEV: &str = "/dev";
/// What CMD's terminal is called.
const CONSOLE: &str = "console";

/// The nodes that stay, and CMD's terminal as /dev/console: its own name leads to the terminals of
/// others, too. They are the machine's own nodes, so CMD uses them and does not change them.
pub(super) fn kept() -> anyhow::Result<Vec<Kept>> {
    let named = NODES.iter().map(|name| Path::new(DEV).join(name));
    let of_families = FAMILIES.iter().flat_map(|(directory, prefix)| family(directory, prefix));
    let is_node = |path: &PathBuf| {
        std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_char_device())
    };
    let mut kept = named
        .chain(of_families)
        .filter(is_node)
        .map(|path| Kept::node(&path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(terminal) = terminal() {
        let mut console = Kept::node(&terminal)?;
        console.path = Path::new(DEV).join(CONSOLE);
        kept.push(console);
    }
    Ok(kept)
}

fn family(directory: &str, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(Path::new(DEV).join(directory)) else { return Vec::new() };
    let named = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    named.map(|entry| entry.path()).collect()
}

/// The node of the terminal on a standard stream. In another fence its name is that of the console.
fn terminal() -> Option<PathBuf> {
    let streams = [
        std::io::stdin().as_fd().as_fd().try_clone_to_owned(),
        std::io::stdout().as_fd().try_clone_to_owned(),
        std::io::stderr().as_fd().try_clone_to_owned(),
    ];
    streams.into_iter().flatten().find_map(|stream| {
        let open = rustix::fs::fstat(&stream).ok().filter(|_| rustix::termios::isatty(&stream))?;
        let name = rustix::termios::ttyname(&stream, Vec::new()).ok();
        let named = name.and_then(|name| name.into_string().ok()).map(PathBuf::from);
        // Each fence has terminals of its own, whose numbers begin anew: the device tells which
        // instance of the file system a node is in.
        let is_it = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|node| {
                (node.dev(), node.ino(), node.rdev()) == (open.st_dev, open.st_ino, open.st_rdev)
            })
        };
        named.into_iter().chain([Path::new(DEV).join(CONSOLE)]).find(is_it)
    })
}

/// Mounts an empty /dev with terminals and shared memory of its own.
pub(super) fn cover() -> anyhow::Result<()> {
    let dev = Path::new(DEV);
    private(dev, 0o755)?;
    for (name, target) in LINKS {
        symlink(target, dev.join(name)).with_context(|| format!("cannot make /dev/{name}"))?;
    }
    for (name, mode) in [("shm", 0o1777), ("pts", 0o755)] {
        std::fs::create_dir(dev.join(name)).with_context(|| format!("cannot make /dev/{name}"))?;
        if name == "shm" {
            private(&dev.join(name), mode)?;
        }
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = c"newinstance,ptmxmode=0666,mode=0620";
    rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, Some(options))
        .context("cannot mount terminals of CMD's own")
}

/// When all nodes are there: nothing is added.
pub(super) fn finish() -> anyhow::Result<()> {
    sys::make_read_only(c"/dev").context("cannot make /dev read-only")
}
