//! From a master key to the keys of one file.

use std::fmt;

use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::hmac;
use zeroize::Zeroizing;

use crate::cipher::{Aead, Cipher, random};
use crate::error::SealError;

/// A random 256-bit key that files are sealed with, and its epoch: rotation makes a new one.
#[derive(Clone)]
pub struct MasterKey {
    epoch: u32,
    bytes: Zeroizing<[u8; 32]>,
}

impl MasterKey {
    /// A new one.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn generate(epoch: u32) -> Result<MasterKey, SealError> {
        let mut bytes = Zeroizing::new([0; 32]);
        random(bytes.as_mut())?;
        Ok(MasterKey { epoch, bytes })
    }

    /// One that was kept elsewhere.
    #[must_use]
    pub fn from_bytes(epoch: u32, bytes: Zeroizing<[u8; 32]>) -> MasterKey {
        MasterKey { epoch, bytes }
    }

    /// Which one it is.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

/// Where a file's master key is found: files that were not sealed anew have keys of older epochs.
pub trait Keys {
    /// The key of an epoch; `None` if it is not at hand.
    fn of_epoch(&self, epoch: u32) -> Option<&MasterKey>;

    /// The key that new files are sealed with.
    fn newest(&self) -> &MasterKey;
}

impl Keys for MasterKey {
    fn of_epoch(&self, epoch: u32) -> Option<&MasterKey> {
        (self.epoch == epoch).then_some(self)
    }

    fn newest(&self) -> &MasterKey {
        self
    }
}

/// The keys of all epochs of a ring.
#[derive(Clone, Debug)]
pub struct MasterKeys {
    older: Vec<MasterKey>,
    newest: MasterKey,
}

impl MasterKeys {
    pub(crate) fn new(older: Vec<MasterKey>, newest: MasterKey) -> MasterKeys {
        MasterKeys { older, newest }
    }

    /// Whether these are the keys of the same ring at a later time, or at the same: none of those in
    /// `earlier` is another one here, or missing, but for the oldest, which a ring may forget. A ring that
    /// was put back to an earlier state and then rotated has other keys for numbers of epochs that were
    /// in use.
    #[must_use]
    pub fn continues(&self, earlier: &Self) -> bool {
        let first = self.all().map(MasterKey::epoch).min();
        let is_same =
            |key: &MasterKey| self.of_epoch(key.epoch).is_some_and(|here| here.bytes == key.bytes);
        earlier.all().filter(|key| Some(key.epoch) >= first).all(is_same)
    }

    fn all(&self) -> impl Iterator<Item = &MasterKey> {
        std::iter::once(&self.newest).chain(&self.older)
    }
}

impl Keys for MasterKeys {
    fn of_epoch(&self, epoch: u32) -> Option<&MasterKey> {
        self.all().find(|key| key.epoch == epoch)
    }

    fn newest(&self) -> &MasterKey {
        &self.newest
    }
}

/// The key itself is never shown.
impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// The keys of one file.
pub(crate) struct FileKeys {
    /// For blocks and nodes of the map.
    pub(crate) aead: Aead,
    header: hmac::Key,
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

impl FileKeys {
    /// HKDF-SHA-256 with the file id as salt, so that no two files share a key.
    pub(crate) fn new(master: &MasterKey, cipher: Cipher, file_id: &[u8; 32]) -> FileKeys {
        let secret = Salt::new(HKDF_SHA256, file_id).extract(master.bytes());
        let derive = |label: &[u8]| {
            let mut key = Zeroizing::new([0; 32]);
            let cipher = [cipher.id()];
            let info = [label, &cipher];
            let output = secret.expand(&info, Bytes32);
            output.and_then(|output| output.fill(key.as_mut())).expect("32 bytes are not too many");
            key
        };
        let content = derive(b"tollgate seal 1 content");
        let header = derive(b"tollgate seal 1 header");
        FileKeys {
            aead: Aead::new(cipher, &content),
            header: hmac::Key::new(hmac::HMAC_SHA256, header.as_ref()),
        }
    }

    pub(crate) fn sign(&self, bytes: &[u8], domain: &[u8; 32]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.header);
        context.update(bytes);
        context.update(domain);
        context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    pub(crate) fn verify(&self, bytes: &[u8], domain: &[u8; 32], tag: &[u8]) -> bool {
        let signed = [bytes, domain].concat();
        hmac::verify(&self.header, &signed, tag).is_ok()
    }
}

/// A policy domain as it goes into what is authenticated: of fixed length.
pub(crate) fn domain_digest(domain: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, domain);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}
