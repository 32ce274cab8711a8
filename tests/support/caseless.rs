//! A directory whose names have several spellings, on whatever file system this kernel has for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Mounted until it is dropped.
pub(crate) struct Caseless {
    at: PathBuf,
    dir: PathBuf,
}

impl Caseless {
    /// Below the directory `base`; `None`, which is said, where this kernel has no such file system.
    pub(crate) fn new(base: &Path) -> Option<Self> {
        let at = base.join("mounted");
        fs::create_dir(&at).unwrap();
        let made = Self::of_memory(&at).or_else(|| Self::of_image(&at, &base.join("image")));
        if made.is_none() {
            println!("skipped: no case-insensitive file system can be made here");
        }
        made
    }

    /// To which `id_rsa` and `ID_RSA` are one name.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn of_memory(at: &Path) -> Option<Self> {
        mount("test", at, "tmpfs", MountFlags::empty(), c"casefold").ok()?;
        Self::found(at)
    }

    fn of_image(at: &Path, image: &Path) -> Option<Self> {
        let is_done = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
        [&["mkfs.vfat"][..], &["mkfs.ext4", "-q", "-F", "-O", "casefold"]].iter().find_map(|make| {
            fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
            let made = is_done(Command::new(make[0]).args(&make[1..]).arg(image));
            let mut mount = Command::new("mount");
            let is_mounted = made && is_done(mount.args(["-o", "loop"]).arg(image).arg(at));
            is_mounted.then(|| Self::found(at)).flatten()
        })
    }

    /// What is mounted at `at`, or a directory made for that there.
    fn found(at: &Path) -> Option<Self> {
        let mut mounted = Self { at: at.to_owned(), dir: at.to_owned() };
        if folds(at) {
            return Some(mounted);
        }
        mounted.dir = at.join("dir");
        fs::create_dir(&mounted.dir).ok()?;
        let flag = Command::new("chattr").arg("+F").arg(&mounted.dir).output();
        (flag.is_ok_and(|output| output.status.success()) && folds(&mounted.dir)).then_some(mounted)
    }
}

impl Drop for Caseless {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

fn folds(dir: &Path) -> bool {
    fs::write(dir.join("id_rsa"), "key\n").is_ok() && fs::read(dir.join("ID_RSA")).is_ok()
}
