//! The two ciphers, behind one face.

use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::SealError;

/// A nonce's place; AES-GCM uses the first 12 bytes, the others are zero.
pub(crate) const NONCE_LEN: usize = 24;
pub(crate) const TAG_LEN: usize = 16;
const GCM_NONCE_LEN: usize = 12;

/// How blocks are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// Fastest where the CPU has AES instructions.
    Aes256Gcm,
    /// For CPUs without them.
    XChaCha20Poly1305,
}

impl Cipher {
    pub(crate) const fn id(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::XChaCha20Poly1305 => 2,
        }
    }

    pub(crate) const fn from_id(id: u8) -> Option<Cipher> {
        match id {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::XChaCha20Poly1305),
            _ => None,
        }
    }
}

/// A key, ready to use.
pub(crate) enum Aead {
    Gcm(Box<LessSafeKey>),
    XChaCha(Box<XChaCha20Poly1305>),
}

impl Aead {
    pub(crate) fn new(cipher: Cipher, key: &[u8; 32]) -> Aead {
        match cipher {
            Cipher::Aes256Gcm => {
                let key = UnboundKey::new(&AES_256_GCM, key).expect("the key has 32 bytes");
                Self::Gcm(Box::new(LessSafeKey::new(key)))
            }
            Cipher::XChaCha20Poly1305 => {
                Self::XChaCha(Box::new(XChaCha20Poly1305::new(key.into())))
            }
        }
    }

    /// A nonce that was never used with this key, but for a chance that the number of writes bounds.
    pub(crate) fn nonce(&self) -> Result<[u8; NONCE_LEN], SealError> {
        let mut nonce = [[0; NONCE_LEN]];
        self.nonces(&mut nonce)?;
        Ok(nonce[0])
    }

    /// As many as fit, with one system call: one for each block would cost half of what
    /// encrypting 4 KiB does.
    pub(crate) fn nonces(&self, nonces: &mut [[u8; NONCE_LEN]]) -> Result<(), SealError> {
        random(nonces.as_flattened_mut())?;
        if matches!(self, Self::Gcm(_)) {
            nonces.iter_mut().for_each(|nonce| nonce[GCM_NONCE_LEN..].fill(0));
        }
        Ok(())
    }

    /// Encrypts in place; the result authenticates the bytes and `aad`.
    pub(crate) fn seal(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        bytes: &mut [u8],
    ) -> [u8; TAG_LEN] {
        match self {
            Self::Gcm(key) => {
                let nonce = gcm_nonce(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), bytes);
                let tag = tag.expect("a block is far below what the cipher can take");
                tag.as_ref().try_into().expect("a tag has 16 bytes")
            }
            Self::XChaCha(key) => {
                let tag = key.encrypt_in_place_detached(nonce.into(), aad, bytes);
                tag.expect("a block is far below what the cipher can take").into()
            }
        }
    }

    /// Decrypts in place; whether the bytes and `aad` are what was sealed. If not, `bytes` holds
    /// nothing to be used.
    #[must_use]
    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        bytes: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> bool {
        match self {
            Self::Gcm(key) => {
                let nonce = gcm_nonce(nonce);
                let tag = ring::aead::Tag::from(tag);
                key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, bytes, 0..).is_ok()
            }
            Self::XChaCha(key) => {
                key.decrypt_in_place_detached(nonce.into(), aad, bytes, &tag.into()).is_ok()
            }
        }
    }
}

fn gcm_nonce(nonce: &[u8; NONCE_LEN]) -> Nonce {
    Nonce::try_assume_unique_for_key(&nonce[..GCM_NONCE_LEN]).expect("12 bytes")
}

/// Fills `bytes` from the system's generator.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), SealError> {
    SystemRandom::new().fill(bytes).map_err(|_| SealError::NoRandom)
}
