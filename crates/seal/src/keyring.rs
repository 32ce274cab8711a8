//! Who may have the master keys: each recipient has the ring's key wrapped by a passphrase or by a key file,
//! and the ring's key wraps the master key of each epoch.
//!
//! The form is text, one record in a line; binary parts are hexadecimal:
//!
//! ```text
//! tollgate keyring 1
//! passphrase NAME M_KIB PASSES LANES SALT NONCE WRAPPED
//! key-file NAME SALT NONCE WRAPPED
//! epoch NUMBER NONCE WRAPPED
//! ```
//!
//! Everything before WRAPPED in its line is authenticated with it.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use zeroize::Zeroizing;

use crate::cipher::{Aead, Cipher, NONCE_LEN, TAG_LEN, random};
use crate::error::SealError;
use crate::keys::MasterKey;

const FIRST_LINE: &str = "tollgate keyring 1";
const SALT_LEN: usize = 32;
const KEY_LEN: usize = 32;
/// What a damaged or hostile ring can make a program read, and do.
const TEXT_MAX: usize = 1 << 20;
const MEMORY_KIB_MAX: u32 = 2 << 20;
const PASSES_MAX: u32 = 64;
const LANES_MAX: u32 = 64;

/// What a guess at a passphrase costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassphraseCost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// How often it is gone through.
    pub passes: u32,
    /// How many threads can work on it.
    pub lanes: u32,
}

/// 256 MiB, three passes, four lanes: about a second.
impl Default for PassphraseCost {
    fn default() -> PassphraseCost {
        PassphraseCost { memory_kib: 256 << 10, passes: 3, lanes: 4 }
    }
}

/// What is wrong with a ring or with what should open it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// Not a ring, or damaged.
    #[error("line {line} of the keyring: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// It opens for no recipient of that kind.
    #[error("the passphrase or key opens none of {0} recipients")]
    Rejected(usize),
    /// There is no such recipient.
    #[error("there is no recipient `{0}`")]
    NoRecipient(String),
    /// A name that is taken, or that no recipient can have.
    #[error("`{0}` is taken, empty or has blanks")]
    BadName(String),
    /// Without a recipient nobody could open it.
    #[error("`{0}` is the last recipient")]
    LastRecipient(String),
    /// Costs that are out of range.
    #[error("Argon2id with {0:?}: {1}")]
    Cost(PassphraseCost, String),
    /// A master key is not what was wrapped.
    #[error("the key of epoch {0} is not authentic")]
    Epoch(u32),
    /// There is no key of that epoch.
    #[error("there is no key of epoch {0}")]
    NoEpoch(u32),
    /// No random numbers.
    #[error(transparent)]
    Seal(#[from] SealError),
}

/// How a recipient opens the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Passphrase(PassphraseCost),
    KeyFile,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrapped {
    nonce: [u8; NONCE_LEN],
    key: [u8; KEY_LEN],
    tag: [u8; TAG_LEN],
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Recipient {
    name: String,
    kind: Kind,
    salt: [u8; SALT_LEN],
    wrapped: Wrapped,
}

/// The recipients and the wrapped keys: what is kept in a file. Holds no open key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    recipients: Vec<Recipient>,
    epochs: Vec<(u32, Wrapped)>,
}

/// The key that opens the master keys.
pub struct RingKey(Zeroizing<[u8; KEY_LEN]>);

impl fmt::Debug for RingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RingKey(..)")
    }
}

impl Keyring {
    /// A new ring with the key of epoch 1 and no recipient yet.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn generate() -> Result<(Keyring, RingKey), KeyringError> {
        let mut key = RingKey(Zeroizing::new([0; KEY_LEN]));
        random(key.0.as_mut())?;
        let mut ring = Keyring { recipients: Vec::new(), epochs: Vec::new() };
        ring.rotate(&key)?;
        Ok((ring, key))
    }

    /// Names of the recipients.
    pub fn recipients(&self) -> impl Iterator<Item = &str> {
        self.recipients.iter().map(|recipient| recipient.name.as_str())
    }

    /// The newest epoch: that of new files.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epochs.last().map_or(0, |(epoch, _)| *epoch)
    }

    /// Lets `passphrase` open the ring.
    ///
    /// # Errors
    /// If the name cannot be had, or the cost is out of range.
    pub fn add_passphrase(
        &mut self,
        key: &RingKey,
        name: &str,
        passphrase: &[u8],
        cost: PassphraseCost,
    ) -> Result<(), KeyringError> {
        self.add(key, name, Kind::Passphrase(cost), passphrase)
    }

    /// Lets whoever has the bytes of a key file open the ring. They should be random, 32 at least.
    ///
    /// # Errors
    /// If the name cannot be had.
    pub fn add_key_file(
        &mut self,
        key: &RingKey,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), KeyringError> {
        self.add(key, name, Kind::KeyFile, bytes)
    }

    fn add(
        &mut self,
        key: &RingKey,
        name: &str,
        kind: Kind,
        secret: &[u8],
    ) -> Result<(), KeyringError> {
        let taken = self.recipients().any(|other| other == name);
        if taken || name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(KeyringError::BadName(name.to_owned()));
        }
        let mut salt = [0; SALT_LEN];
        random(&mut salt)?;
        let empty = Wrapped { nonce: [0; NONCE_LEN], key: [0; KEY_LEN], tag: [0; TAG_LEN] };
        let mut recipient = Recipient { name: name.to_owned(), kind, salt, wrapped: empty };
        let wrapping = recipient.wrapping_key(secret)?;
        recipient.wrapped = wrap(&wrapping, &recipient.head(), &key.0)?;
        self.recipients.push(recipient);
        Ok(())
    }

    /// Takes a recipient off. Who had opened the ring before may have kept its key: rotate, and
    /// seal the files anew.
    ///
    /// # Errors
    /// If there is no such recipient, or no other one.
    pub fn remove(&mut self, name: &str) -> Result<(), KeyringError> {
        let at = self.recipients().position(|other| other == name);
        let at = at.ok_or_else(|| KeyringError::NoRecipient(name.to_owned()))?;
        if self.recipients.len() == 1 {
            return Err(KeyringError::LastRecipient(name.to_owned()));
        }
        self.recipients.remove(at);
        Ok(())
    }

    /// Opens the ring for `name` with another passphrase from now on. No file is touched.
    ///
    /// # Errors
    /// If there is no such recipient, or the cost is out of range.
    pub fn change_passphrase(
        &mut self,
        key: &RingKey,
        name: &str,
        passphrase: &[u8],
        cost: PassphraseCost,
    ) -> Result<(), KeyringError> {
        let at = self.recipients().position(|other| other == name);
        let at = at.ok_or_else(|| KeyringError::NoRecipient(name.to_owned()))?;
        let before = self.recipients.remove(at);
        let added = self.add_passphrase(key, name, passphrase, cost);
        if added.is_err() {
            self.recipients.insert(at, before);
        }
        added
    }

    /// Opens the ring with a passphrase.
    ///
    /// # Errors
    /// [`KeyringError::Rejected`] if it is nobody's.
    pub fn open_with_passphrase(&self, passphrase: &[u8]) -> Result<RingKey, KeyringError> {
        self.open(passphrase, |kind| matches!(kind, Kind::Passphrase(_)))
    }

    /// Opens the ring with the bytes of a key file.
    ///
    /// # Errors
    /// [`KeyringError::Rejected`] if they are nobody's.
    pub fn open_with_key_file(&self, bytes: &[u8]) -> Result<RingKey, KeyringError> {
        self.open(bytes, |kind| *kind == Kind::KeyFile)
    }

    fn open(&self, secret: &[u8], of: impl Fn(&Kind) -> bool) -> Result<RingKey, KeyringError> {
        let mut tried = 0;
        for recipient in self.recipients.iter().filter(|recipient| of(&recipient.kind)) {
            tried += 1;
            let wrapping = recipient.wrapping_key(secret)?;
            if let Some(key) = unwrap(&wrapping, &recipient.head(), &recipient.wrapped) {
                return Ok(RingKey(key));
            }
        }
        Err(KeyringError::Rejected(tried))
    }

    /// The master key of an epoch.
    ///
    /// # Errors
    /// If there is none, or it was changed.
    pub fn master_key(&self, key: &RingKey, epoch: u32) -> Result<MasterKey, KeyringError> {
        let found = self.epochs.iter().find(|(number, _)| *number == epoch);
        let (_, wrapped) = found.ok_or(KeyringError::NoEpoch(epoch))?;
        let bytes = unwrap(&key.0, &epoch_head(epoch), wrapped);
        Ok(MasterKey::from_bytes(epoch, bytes.ok_or(KeyringError::Epoch(epoch))?))
    }

    /// Makes a new master key; its epoch. Files keep theirs until they are sealed anew.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn rotate(&mut self, key: &RingKey) -> Result<u32, KeyringError> {
        let epoch = self.epoch().checked_add(1).ok_or(KeyringError::NoEpoch(u32::MAX))?;
        let master = MasterKey::generate(epoch)?;
        self.epochs.push((epoch, wrap(&key.0, &epoch_head(epoch), master.bytes())?));
        Ok(epoch)
    }

    /// Reads what [`Keyring`]'s `Display` wrote.
    ///
    /// # Errors
    /// With the line that is wrong.
    pub fn parse(text: &str) -> Result<Keyring, KeyringError> {
        let problem = |line, problem: String| KeyringError::Line { line, problem };
        if text.len() > TEXT_MAX {
            return Err(problem(1, format!("{} bytes; {TEXT_MAX} at most", text.len())));
        }
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(FIRST_LINE) {
            return Err(problem(1, format!("not `{FIRST_LINE}`")));
        }
        let mut ring = Keyring { recipients: Vec::new(), epochs: Vec::new() };
        for (index, line) in lines {
            ring.record(line).map_err(|text| problem(index + 1, text))?;
        }
        Ok(ring)
    }

    fn record(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["passphrase", name, memory, passes, lanes, salt, nonce, wrapped] => {
                let cost = PassphraseCost {
                    memory_kib: number(memory)?,
                    passes: number(passes)?,
                    lanes: number(lanes)?,
                };
                parameters(cost).map_err(|error| error.to_string())?;
                self.recipient(name, Kind::Passphrase(cost), salt, nonce, wrapped)
            }
            ["key-file", name, salt, nonce, wrapped] => {
                self.recipient(name, Kind::KeyFile, salt, nonce, wrapped)
            }
            ["epoch", epoch, nonce, wrapped] => {
                let epoch = number(epoch)?;
                if epoch <= self.epoch() {
                    return Err(format!("epoch {epoch} does not follow epoch {}", self.epoch()));
                }
                self.epochs.push((epoch, read_wrapped(nonce, wrapped)?));
                Ok(())
            }
            _ => Err(format!("`{}` is no record with its fields", words[0])),
        }
    }

    fn recipient(
        &mut self,
        name: &str,
        kind: Kind,
        salt: &str,
        nonce: &str,
        wrapped: &str,
    ) -> Result<(), String> {
        if name.is_empty() || self.recipients().any(|other| other == name) {
            return Err(format!("recipient `{name}` stands twice, or has no name"));
        }
        let (salt, wrapped) = (hex(salt)?, read_wrapped(nonce, wrapped)?);
        self.recipients.push(Recipient { name: name.to_owned(), kind, salt, wrapped });
        Ok(())
    }
}

impl Recipient {
    /// Everything in its line before what is wrapped.
    fn head(&self) -> String {
        let (name, salt) = (&self.name, Hex(&self.salt));
        match &self.kind {
            Kind::Passphrase(PassphraseCost { memory_kib, passes, lanes }) => {
                format!("passphrase {name} {memory_kib} {passes} {lanes} {salt}")
            }
            Kind::KeyFile => format!("key-file {name} {salt}"),
        }
    }

    /// The key that the ring's key is wrapped with.
    fn wrapping_key(&self, secret: &[u8]) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyringError> {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        match self.kind {
            Kind::Passphrase(cost) => {
                let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters(cost)?);
                argon
                    .hash_password_into(secret, &self.salt, key.as_mut())
                    .map_err(|error| KeyringError::Cost(cost, error.to_string()))?;
            }
            Kind::KeyFile => {
                let secret = Salt::new(HKDF_SHA256, &self.salt).extract(secret);
                let output = secret.expand(&[b"tollgate keyring 1 key file"], Bytes32);
                output
                    .and_then(|output| output.fill(key.as_mut()))
                    .expect("32 bytes are not too many");
            }
        }
        Ok(key)
    }
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

/// Checked before anything is allocated for them.
fn parameters(cost: PassphraseCost) -> Result<Params, KeyringError> {
    let refused = |problem: String| KeyringError::Cost(cost, problem);
    if cost.memory_kib > MEMORY_KIB_MAX || cost.passes > PASSES_MAX || cost.lanes > LANES_MAX {
        return Err(refused(format!(
            "at most {MEMORY_KIB_MAX} KiB, {PASSES_MAX} passes and {LANES_MAX} lanes are possible"
        )));
    }
    Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(KEY_LEN))
        .map_err(|error| refused(error.to_string()))
}

fn epoch_head(epoch: u32) -> String {
    format!("epoch {epoch}")
}

fn wrap(by: &[u8; 32], head: &str, key: &[u8; KEY_LEN]) -> Result<Wrapped, KeyringError> {
    let aead = Aead::new(Cipher::XChaCha20Poly1305, by);
    let nonce = aead.nonce()?;
    let mut key = *key;
    let tag = aead.seal(&nonce, head.as_bytes(), &mut key);
    Ok(Wrapped { nonce, key, tag })
}

fn unwrap(by: &[u8; 32], head: &str, wrapped: &Wrapped) -> Option<Zeroizing<[u8; KEY_LEN]>> {
    let aead = Aead::new(Cipher::XChaCha20Poly1305, by);
    let mut key = Zeroizing::new(wrapped.key);
    aead.open(&wrapped.nonce, head.as_bytes(), key.as_mut(), wrapped.tag).then_some(key)
}

impl fmt::Display for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        for recipient in &self.recipients {
            writeln!(f, "{} {}", recipient.head(), recipient.wrapped)?;
        }
        for (epoch, wrapped) in &self.epochs {
            writeln!(f, "{} {wrapped}", epoch_head(*epoch))?;
        }
        Ok(())
    }
}

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", Hex(&self.nonce), Hex(&self.key), Hex(&self.tag))
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn read_wrapped(nonce: &str, wrapped: &str) -> Result<Wrapped, String> {
    let both: [u8; KEY_LEN + TAG_LEN] = hex(wrapped)?;
    let (mut key, mut tag) = ([0; KEY_LEN], [0; TAG_LEN]);
    key.copy_from_slice(&both[..KEY_LEN]);
    tag.copy_from_slice(&both[KEY_LEN..]);
    Ok(Wrapped { nonce: hex(nonce)?, key, tag })
}

fn hex<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let wrong = || format!("`{text:.20}` is not {} hexadecimal digits", 2 * N);
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return Err(wrong());
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(wrong)?;
        *byte = high << 4 | low;
    }
    Ok(bytes)
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text:.20}` is not a number"))
}
