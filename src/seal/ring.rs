//! The keyring of a directory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use serde_json::json;
use tollgate_seal::{Keyring, KeyringError, Keys, MasterKeys, RingKey};
use tollgate_view::SealKeys;

use crate::cli::{
    SealAddArgs, SealInitArgs, SealKeyArgs, SealNewArgs, SealPasswdArgs, SealSecretArgs,
};
use crate::escape::{escaped, json_text};
use crate::messages;
use crate::seal::attributes::Attributes;
use crate::seal::secret::{Secret, cost, shown};
use crate::seal::spot::path_of;
use crate::seal::unfinished;

/// The keyring's name in the directory whose files it seals.
pub(crate) const IN_DIR: &str = ".tollgate-seal";
/// Beside it: the server that writes sealed files has a lock on it. Not the keyring itself, which is
/// replaced by each change.
pub(crate) const LOCK_IN_DIR: &str = ".tollgate-seal.lock";
/// Bytes of a keyring, at most.
const LONGEST: u64 = 1 << 20;
/// How it is opened: nothing is waited for, and no link is followed.
const OPENING: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The keyring of a directory, open.
pub(super) struct Open {
    path: PathBuf,
    pub(super) ring: Keyring,
    pub(super) key: RingKey,
    /// The directory, whatever its path leads to by now. Locked while the keyring may be changed: two
    /// commands must not lose what the other wrote.
    locked: File,
}

impl Open {
    /// Opens the keyring of a directory with the secret that `args` name.
    ///
    /// # Errors
    /// With what is missing, damaged or wrong.
    pub(super) fn of(args: &SealKeyArgs) -> Result<Open> {
        Ok(Open::with_secret(args)?.0)
    }

    fn with_secret(args: &SealKeyArgs) -> Result<(Open, Secret)> {
        let locked = lock(&args.dir)?;
        let or = ", or name its directory with `--dir`";
        let (path, ring) = read((&path_of(&locked), &args.dir), or)?;
        let secret = Secret::of(&args.secret)?;
        let key = open(&path, &ring, &secret)?;
        Ok((Open { path, ring, key, locked }, secret))
    }

    /// Lets other commands change the keyring, while files are worked on.
    ///
    /// # Errors
    /// That of flock(2).
    pub(super) fn unlock(&self) -> Result<()> {
        Ok(rustix::fs::flock(&self.locked, FlockOperation::Unlock)?)
    }

    /// Locks it again, and reads it as it is by now.
    ///
    /// # Errors
    /// That of flock(2), or those of reading it.
    pub(super) fn lock_again(&mut self) -> Result<()> {
        rustix::fs::flock(&self.locked, FlockOperation::LockExclusive)?;
        let named = self.path.parent().unwrap_or(Path::new(".")).to_owned();
        self.ring = read((&path_of(&self.locked), &named), "")?.1;
        Ok(())
    }

    pub(super) fn save(&self) -> Result<()> {
        save(&self.locked, &self.path, &self.ring)
    }

    /// The directory, whose files are worked on without the lock.
    ///
    /// # Errors
    /// That of open(2).
    pub(super) fn directory(&self) -> Result<File> {
        File::open(path_of(&self.locked)).with_context(|| shown(&self.path))
    }

    pub(super) fn keys(&self) -> Result<MasterKeys> {
        self.ring.master_keys(&self.key).with_context(|| format!("keyring {}", shown(&self.path)))
    }
}

/// The master keys of the directory `source` at `dir`, for a server, which reads the keyring again
/// when it meets a file of an epoch that it does not know.
///
/// # Errors
/// With what is missing, damaged or wrong.
pub(crate) fn keys_of(dir: &Path, source: &OwnedFd, secret: &SealSecretArgs) -> Result<SealKeys> {
    let (path, ring) = read((dir, dir), "")?;
    let key = open(&path, &ring, &Secret::of(secret)?)?;
    let keys = ring.master_keys(&key).with_context(|| format!("keyring {}", shown(&path)))?;
    let source = source.try_clone().with_context(|| format!("directory {}", shown(dir)))?;
    let mut seen = Seen { keys: keys.clone(), version: None };
    let said = Once::new();
    let beside = source.try_clone().with_context(|| format!("directory {}", shown(dir)))?;
    let newer = move || {
        newer(&source, &key, &mut seen).unwrap_or_else(|error| {
            let reason = messages::in_words(&error);
            let warning = || format!("keyring {} cannot be read again: {reason}", shown(&path));
            said.call_once(|| messages::warn(&warning()));
            None
        })
    };
    Ok(SealKeys::new(keys, newer, move || writers_lock(&beside)))
}

/// Opens the file that the server which writes has a lock on. Made by root, it is whose the keyring
/// is, who may start the next server.
fn writers_lock(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let make = OPENING | OFlags::CREATE | OFlags::EXCL;
    let lock = match rustix::fs::openat(dir, LOCK_IN_DIR, make, Mode::RUSR | Mode::WUSR) {
        Err(Errno::EXIST) => rustix::fs::openat(dir, LOCK_IN_DIR, OPENING, Mode::empty())?,
        made => {
            let made = made?;
            if let Ok(ring) = rustix::fs::statat(dir, IN_DIR, AtFlags::SYMLINK_NOFOLLOW) {
                let (uid, gid) = (Uid::from_raw(ring.st_uid), Gid::from_raw(ring.st_gid));
                let _ = rustix::fs::chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
            }
            made
        }
    };
    let found = rustix::fs::fstat(&lock)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if is_file { Ok(lock) } else { Err(Errno::INVAL) }
}

/// What a server knows of its keyring.
struct Seen {
    /// Those in use.
    keys: MasterKeys,
    /// Of the file when it was read again last: its number, and when it was changed.
    version: Option<(u64, i64, u64)>,
}

/// The keys of the keyring in `dir` as it is now, if it has a later epoch. The ring's own key stays
/// the same when recipients and epochs change.
fn newer(dir: &OwnedFd, key: &RingKey, seen: &mut Seen) -> Result<Option<MasterKeys>> {
    let found = rustix::fs::statat(dir, IN_DIR, AtFlags::SYMLINK_NOFOLLOW)?;
    let version = Some((found.st_ino, found.st_ctime, found.st_ctime_nsec));
    if seen.version == version {
        return Ok(None);
    }
    let ring = Keyring::parse(&text_of(rustix::fs::openat(dir, IN_DIR, OPENING, Mode::empty())?)?)?;
    seen.version = version;
    if ring.epoch() <= newest(&seen.keys) {
        return Ok(None);
    }
    let keys = ring.master_keys(key)?;
    if !keys.continues(&seen.keys) {
        bail!(
            "its keys of later epochs do not follow on those in use (was it put back to an earlier state, \
             and rotated then?); they count once the view is mounted again"
        );
    }
    seen.keys = keys.clone();
    Ok(Some(keys))
}

fn open(path: &Path, ring: &Keyring, secret: &Secret) -> Result<RingKey> {
    let opened = match secret {
        Secret::Passphrase(bytes) => (ring.open_with_passphrase(bytes), "passphrase"),
        Secret::KeyFile(bytes) => (ring.open_with_key_file(bytes), "key file"),
    };
    opened.0.map_err(|error| match error {
        KeyringError::Rejected(tried) => anyhow!(rustix::io::Errno::KEYREJECTED).context(format!(
            "the {what} opens keyring {} for none of its {tried} recipients with a {what}",
            shown(path),
            what = opened.1
        )),
        other => anyhow!(other).context(format!("keyring {}", shown(path))),
    })
}

fn lock(dir: &Path) -> Result<File> {
    let lock = File::open(dir).with_context(|| format!("directory {}", shown(dir)))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)
        .with_context(|| format!("locking directory {}", shown(dir)))?;
    Ok(lock)
}

/// The keyring of `dir`, which is called `named`; `or` says what else to do where there is none.
fn read((dir, named): (&Path, &Path), or: &str) -> Result<(PathBuf, Keyring)> {
    let path = named.join(IN_DIR);
    let text = match rustix::fs::open(dir.join(IN_DIR), OPENING, Mode::empty()) {
        Ok(file) => text_of(file).with_context(|| format!("keyring {}", shown(&path)))?,
        Err(Errno::LOOP) => bail!("keyring {} is a symbolic link, not a file", shown(&path)),
        Err(Errno::NOENT) => bail!(
            "there is no keyring {}; make one with `tollgate seal init {}`{or}",
            shown(&path),
            named.display()
        ),
        Err(error) => return Err(error).with_context(|| format!("keyring {}", shown(&path))),
    };
    let ring = Keyring::parse(&text).with_context(|| format!("keyring {}", shown(&path)))?;
    Ok((path, ring))
}

/// The text of a keyring, which must be a regular file: a FIFO would be waited for.
fn text_of(file: OwnedFd) -> Result<String> {
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        bail!("is not a regular file");
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// The new ring is there as a whole, or the old one still is; in `dir`, where it is called `path`.
fn save(dir: &File, path: &Path, ring: &Keyring) -> Result<()> {
    let named = || format!("keyring {}", shown(path));
    let here = path_of(dir);
    let put = put_in_place(dir, &here, ring);
    // Also where there was no room.
    unfinished::leave(&here);
    put.with_context(named)?;
    dir.sync_all().with_context(named)
}

fn put_in_place(dir: &File, here: &Path, ring: &Keyring) -> Result<()> {
    // Views hide it there, and the next command removes what a kill leaves.
    let new = unfinished::temporary_for(dir, here, here)?;
    new.as_file().write_all(ring.to_string().as_bytes())?;
    // Whoever could read the old one can read this one: a server that runs as its owner, above all.
    match rustix::fs::openat(dir, IN_DIR, OPENING, Mode::empty()) {
        Err(Errno::NOENT) => {}
        old => Attributes::of(&File::from(old?))?.give_rights(new.as_file())?,
    }
    new.as_file().sync_all()?;
    let (_file, name) = new.into_parts();
    Ok(name.path.persist(here.join(IN_DIR)).map_err(|error| error.error)?)
}

fn enter(ring: &mut Keyring, key: &RingKey, name: &str, new: &SealNewArgs) -> Result<()> {
    let entered = match Secret::new(new)? {
        Secret::Passphrase(bytes) => ring.add_passphrase(key, name, &bytes, cost(new)),
        Secret::KeyFile(bytes) => ring.add_key_file(key, name, &bytes),
    };
    entered.map_err(Into::into)
}

pub(super) fn init(args: &SealInitArgs) -> Result<()> {
    let locked = lock(&args.dir)?;
    let path = args.dir.join(IN_DIR);
    if path_of(&locked).join(IN_DIR).try_exists().unwrap_or(true) {
        bail!("there is a keyring {} already; `add` a recipient to it", shown(&path));
    }
    let (mut ring, key) = Keyring::generate()?;
    // Before a key file is made.
    ring.may_have(&args.name)?;
    enter(&mut ring, &key, &args.name, &args.new)?;
    save(&locked, &path, &ring)?;
    say(args.json, &path, &ring, &format!("made keyring {}", shown(&path)));
    if !args.json {
        println!(
            "keep a copy of it: without the keyring, what is sealed cannot be read by anybody"
        );
    }
    Ok(())
}

pub(super) fn add(args: &SealAddArgs) -> Result<()> {
    let mut open = Open::of(&args.key)?;
    let done = if let Some(name) = &args.remove {
        must_have(&open.ring, name)?;
        open.ring.remove(name)?;
        format!(
            "removed `{name}`; whoever could open the keyring may have kept its key: only a new \
             keyring shuts them out"
        )
    } else {
        let name = args.name.as_deref().unwrap_or_default();
        // Before a key file is made.
        open.ring.may_have(name)?;
        enter(&mut open.ring, &open.key, name, &args.new)?;
        format!("`{name}` can open keyring {}", shown(&open.path))
    };
    open.save()?;
    say(args.key.json, &open.path, &open.ring, &done);
    Ok(())
}

pub(super) fn passwd(args: &SealPasswdArgs) -> Result<()> {
    if args.new.new_key_file.is_some() {
        bail!("`passwd` changes a passphrase; `add` a key file instead");
    }
    let (mut open, secret) = Open::with_secret(&args.key)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => whose(&open.ring, &secret)?,
    };
    must_have(&open.ring, &name)?;
    if has_key_file(&open.ring, &name) {
        bail!(
            "recipient `{name}` has a key file; add a passphrase recipient with `tollgate seal \
             add`, or name another with `--name`"
        );
    }
    if let Secret::Passphrase(bytes) = Secret::new(&args.new)? {
        open.ring.change_passphrase(&open.key, &name, &bytes, cost(&args.new))?;
    }
    open.save()?;
    let done = format!("the passphrase of `{name}` is changed; no file was touched");
    say(args.key.json, &open.path, &open.ring, &done);
    Ok(())
}

fn must_have(ring: &Keyring, name: &str) -> Result<()> {
    if ring.recipients().any(|known| known == name) {
        return Ok(());
    }
    let names: Vec<&str> = ring.recipients().collect();
    bail!("there is no recipient `{}`; the keyring has {}", escaped(name), names.join(", "))
}

/// Whose passphrase is to be changed where no name is given: the only recipient's, or that of whom
/// the secret opens.
fn whose(ring: &Keyring, secret: &Secret) -> Result<String> {
    let names: Vec<&str> = ring.recipients().collect();
    if let [only] = names[..] {
        return Ok(only.to_owned());
    }
    if let Secret::Passphrase(bytes) = secret {
        for name in &names {
            if !has_key_file(ring, name) && alone(ring, name)?.open_with_passphrase(bytes).is_ok() {
                return Ok((*name).to_owned());
            }
        }
    }
    let with_passphrase: Vec<_> =
        names.iter().copied().filter(|name| !has_key_file(ring, name)).collect();
    if with_passphrase.is_empty() {
        bail!("no recipient has a passphrase: all of {} have key files", names.join(", "));
    }
    bail!("whose passphrase? Name one with `--name`: {}", with_passphrase.join(", "))
}

fn has_key_file(ring: &Keyring, name: &str) -> bool {
    let start = format!("key-file {name} ");
    ring.to_string().lines().any(|line| line.starts_with(&start))
}

/// The keyring with one of its recipients: what opens it is that one's.
fn alone(ring: &Keyring, name: &str) -> Result<Keyring> {
    let text = ring.to_string();
    let other = |line: &&str| {
        let mut words = line.split(' ');
        matches!(words.next(), Some("passphrase" | "key-file")) && words.next() != Some(name)
    };
    let text: String =
        text.lines().filter(|line| !other(line)).map(|line| format!("{line}\n")).collect();
    Ok(Keyring::parse(&text)?)
}

fn say(as_json: bool, path: &Path, ring: &Keyring, text: &str) {
    if as_json {
        let recipients: Vec<_> = ring.recipients().collect();
        let keyring = path.to_string_lossy();
        let report = json!({"keyring": keyring, "recipients": recipients, "epoch": ring.epoch()});
        println!("{}", json_text(&report.to_string()));
    } else {
        println!("{text}");
    }
}

/// The newest epoch.
pub(super) fn newest(keys: &MasterKeys) -> u32 {
    keys.newest().epoch()
}
