//! A recipient of a ring: from a passphrase or a key file to the key that wraps.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use zeroize::Zeroizing;

use crate::cipher::{Aead, Cipher, NONCE_LEN, TAG_LEN};
use crate::keyring::cost::PassphraseCost;
use crate::keyring::error::KeyringError;

pub(super) const SALT_LEN: usize = 32;
pub(super) const KEY_LEN: usize = 32;
/// What a damaged or hostile ring can make a program do.
const MEMORY_KIB_MAX: u32 = 2 << 20;
const PASSES_MAX: u32 = 64;
const LANES_MAX: u32 = 64;

/// How a recipient opens the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Passphrase(PassphraseCost),
    KeyFile,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrapped {
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) key: [u8; KEY_LEN],
    pub(super) tag: [u8; TAG_LEN],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recipient {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) salt: [u8; SALT_LEN],
    pub(super) wrapped: Wrapped,
}

impl Recipient {
    /// Everything in its line before what is wrapped.
    pub(super) fn head(&self) -> String {
        let (name, salt) = (&self.name, Hex(&self.salt));
        match &self.kind {
            Kind::Passphrase(PassphraseCost { memory_kib, passes, lanes }) => {
                format!("passphrase {name} {memory_kib} {passes} {lanes} {salt}")
            }
            Kind::KeyFile => format!("key-file {name} {salt}"),
        }
    }

    /// The key that the ring's key is wrapped with.
    pub(super) fn wrapping_key(
        &self,
        secret: &[u8],
    ) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyringError> {
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
pub(super) fn parameters(cost: PassphraseCost) -> Result<Params, KeyringError> {
    let refused = |problem: String| KeyringError::Cost(cost, problem);
    if cost.memory_kib > MEMORY_KIB_MAX || cost.passes > PASSES_MAX || cost.lanes > LANES_MAX {
        return Err(refused(format!(
            "at most {MEMORY_KIB_MAX} KiB, {PASSES_MAX} passes and {LANES_MAX} lanes are possible"
        )));
    }
    Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(KEY_LEN))
        .map_err(|error| refused(error.to_string()))
}

pub(super) fn wrap(
    by: &[u8; 32],
    head: &str,
    key: &[u8; KEY_LEN],
) -> Result<Wrapped, KeyringError> {
    let aead = Aead::new(Cipher::XChaCha20Poly1305, by);
    let nonce = aead.nonce()?;
    let mut key = *key;
    let tag = aead.seal(&nonce, head.as_bytes(), &mut key);
    Ok(Wrapped { nonce, key, tag })
}

pub(super) fn unwrap(
    by: &[u8; 32],
    head: &str,
    wrapped: &Wrapped,
) -> Option<Zeroizing<[u8; KEY_LEN]>> {
    let aead = Aead::new(Cipher::XChaCha20Poly1305, by);
    let mut key = Zeroizing::new(wrapped.key);
    aead.open(&wrapped.nonce, head.as_bytes(), key.as_mut(), wrapped.tag).then_some(key)
}

/// Bytes as hexadecimal digits.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
