//! What opens a keyring: a passphrase or the bytes of a key file, and where it comes from.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::OFlags;
use tollgate_seal::{Keyring, PassphraseCost};
use zeroize::Zeroizing;

use crate::cli::{SealNewArgs, SealSecretArgs};
use crate::messages;
use crate::seal::terminal;

/// Bytes of a key file: at least, at most, and of one that is made.
const KEY_LEN_MIN: usize = 32;
const KEY_LEN_MAX: u64 = 1 << 20;
const KEY_LEN_NEW: usize = 64;

/// Options in the place of the terminal, of what opens a keyring, and of what shall open it.
const INSTEAD: &str = "--seal-passphrase-file or --seal-key-file";
const NEW_INSTEAD: &str = "--new-passphrase-file or --new-key-file";

/// What opens a keyring.
pub(super) enum Secret {
    Passphrase(Zeroizing<Vec<u8>>),
    KeyFile(Zeroizing<Vec<u8>>),
}

impl Secret {
    /// That of the command line, of the environment, of systemd, or of the terminal.
    ///
    /// # Errors
    /// With the file that is wrong, or if nothing is given and there is no terminal.
    pub(super) fn of(args: &SealSecretArgs) -> Result<Secret> {
        if args.key_file.is_none() && args.passphrase_file.is_some() {
            return Secret::passphrase_from(args.passphrase_file.as_deref());
        }
        let key_file =
            args.key_file.clone().or_else(|| Some(env("TOLLGATE_SEAL_KEY_FILE")?.into()));
        if let Some(file) = key_file {
            return Secret::key_from(&file);
        }
        if let Some(file) = env("TOLLGATE_SEAL_PASSPHRASE_FILE") {
            return Secret::passphrase_from(Some(Path::new(&file)));
        }
        if let Some(file) = credential("tollgate-seal-key") {
            return Secret::key_from(&file);
        }
        Secret::passphrase_from(credential("tollgate-seal-passphrase").as_deref())
    }

    /// A new one, as `args` say: of a file, made, or of the terminal, asked for twice.
    ///
    /// # Errors
    /// As [`Secret::of`].
    pub(super) fn new(args: &SealNewArgs) -> Result<Secret> {
        if let Some(file) = &args.new_key_file {
            if !file.try_exists().unwrap_or(true) {
                make_key(file)?;
            }
            return Secret::key_from(file);
        }
        if args.new_passphrase_file.is_some() {
            return Secret::passphrase_from(args.new_passphrase_file.as_deref());
        }
        let ask = |question| terminal::ask(question, NEW_INSTEAD);
        let first = ask("New passphrase")?;
        if *first != *ask("The same again")? {
            bail!("the two passphrases are not the same");
        }
        Ok(Secret::Passphrase(first))
    }

    fn key_from(file: &Path) -> Result<Secret> {
        let bytes = read(file, KEY_LEN_MAX).with_context(|| format!("key file {}", shown(file)))?;
        if bytes.len() < KEY_LEN_MIN {
            bail!(
                "key file {} has {} bytes; at least {KEY_LEN_MIN}, random ones, are needed",
                shown(file),
                bytes.len()
            );
        }
        Ok(Secret::KeyFile(bytes))
    }

    fn passphrase_from(file: Option<&Path>) -> Result<Secret> {
        let Some(file) = file else {
            return Ok(Secret::Passphrase(terminal::ask("Passphrase", INSTEAD)?));
        };
        let mut bytes = read(file, terminal::LONGEST)
            .with_context(|| format!("passphrase file {}", shown(file)))?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.is_empty() {
            bail!("passphrase file {} is empty", shown(file));
        }
        Ok(Secret::Passphrase(bytes))
    }
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn credential(name: &str) -> Option<PathBuf> {
    let file = PathBuf::from(env("CREDENTIALS_DIRECTORY")?).join(name);
    file.exists().then_some(file)
}

/// Every file that the command line, the environment or systemd names, also those that give way to
/// another.
pub(crate) fn files(args: &SealSecretArgs) -> Vec<PathBuf> {
    let named = ["TOLLGATE_SEAL_KEY_FILE", "TOLLGATE_SEAL_PASSPHRASE_FILE"];
    let credentials = ["tollgate-seal-key", "tollgate-seal-passphrase"];
    let given = [args.key_file.clone(), args.passphrase_file.clone()].into_iter().flatten();
    let variables = named.into_iter().filter_map(env).map(PathBuf::from);
    given.chain(variables).chain(credentials.into_iter().filter_map(credential)).collect()
}

/// Whether a file opens `ring`, also one that nobody named: sealed, it would open nothing any more.
///
/// # Errors
/// If it cannot be read.
pub(super) fn is_key_of(file: &File, ring: &Keyring) -> Result<bool> {
    let length = file.metadata()?.len();
    if length < KEY_LEN_MIN as u64 || length > KEY_LEN_MAX {
        return Ok(false);
    }
    let mut bytes = Zeroizing::new(vec![0; usize::try_from(length)?]);
    // What is shorter by now is no key, and left alone as changed.
    let read = file.read_exact_at(&mut bytes, 0);
    Ok(read.is_ok() && ring.open_with_key_file(&bytes).is_ok())
}

/// What a guess at a new passphrase shall cost.
pub(super) fn cost(args: &SealNewArgs) -> PassphraseCost {
    PassphraseCost { memory_kib: args.memory_mib << 10, ..PassphraseCost::default() }
}

/// A whole file, which must not be a FIFO or a device, and should be its owner's alone.
fn read(path: &Path, most: u64) -> Result<Zeroizing<Vec<u8>>> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a small number");
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        bail!("is not a regular file");
    }
    if metadata.len() > most {
        bail!("has {} bytes; at most {most}", metadata.len());
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        messages::warn(&format!(
            "{} can be read or written by others (mode {mode:o}); chmod 600 it",
            shown(path)
        ));
    }
    // The whole room at once: what grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len() + 1)?));
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn make_key(path: &Path) -> Result<()> {
    let named = || format!("key file {}", shown(path));
    let mut bytes = Zeroizing::new([0; KEY_LEN_NEW]);
    let mut filled = 0;
    while filled < KEY_LEN_NEW {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|error| anyhow!("no random numbers: {error}"))?;
    }
    crate::files::write_new(path, bytes.as_ref(), 0o600).with_context(named)
}

/// A path as messages show it.
pub(super) fn shown(path: &Path) -> String {
    format!("`{}`", crate::escape::shown(path))
}
