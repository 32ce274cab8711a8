//! The ring: recipients, epochs, what may be done with them.

use std::fmt;

use zeroize::Zeroizing;

use crate::cipher::{NONCE_LEN, TAG_LEN, random};
use crate::keyring::cost::PassphraseCost;
use crate::keyring::error::KeyringError;
use crate::keyring::recipient::{KEY_LEN, Kind, Recipient, SALT_LEN, Wrapped, unwrap, wrap};
use crate::keys::{MasterKey, MasterKeys};

/// The recipients and the wrapped keys: what is kept in a file. Holds no open key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    pub(super) recipients: Vec<Recipient>,
    pub(super) epochs: Vec<(u32, Wrapped)>,
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
    /// If the name cannot be had, the cost is out of range, or `key` is another ring's.
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
    /// If the name cannot be had, or `key` is another ring's.
    pub fn add_key_file(
        &mut self,
        key: &RingKey,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), KeyringError> {
        self.add(key, name, Kind::KeyFile, bytes)
    }

    /// Whether a further recipient can have this name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn may_have(&self, name: &str) -> Result<(), KeyringError> {
        if self.recipients().any(|other| other == name) {
            return Err(KeyringError::NameTaken(name.to_owned()));
        }
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(KeyringError::BadName(name.to_owned()));
        }
        Ok(())
    }

    fn add(
        &mut self,
        key: &RingKey,
        name: &str,
        kind: Kind,
        secret: &[u8],
    ) -> Result<(), KeyringError> {
        self.may_have(name)?;
        self.must_open_with(key)?;
        let mut salt = [0; SALT_LEN];
        random(&mut salt)?;
        let empty = Wrapped { nonce: [0; NONCE_LEN], key: [0; KEY_LEN], tag: [0; TAG_LEN] };
        let mut recipient = Recipient { name: name.to_owned(), kind, salt, wrapped: empty };
        let wrapping = recipient.wrapping_key(secret)?;
        recipient.wrapped = wrap(&wrapping, &recipient.head(), &key.0)?;
        self.recipients.push(recipient);
        Ok(())
    }

    /// Whoever got another ring's key from this one could open nothing, and what is wrapped with it nobody.
    /// One master key that opens will do: another one may be damaged.
    fn must_open_with(&self, key: &RingKey) -> Result<(), KeyringError> {
        let mut epochs = self.epochs.iter();
        let opens =
            self.epochs.is_empty() || epochs.any(|(epoch, _)| self.master_key(key, *epoch).is_ok());
        if opens { Ok(()) } else { Err(KeyringError::AnothersKey) }
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
    /// If there is no such recipient, it has a key file, the cost is out of range, or `key` is another
    /// ring's.
    pub fn change_passphrase(
        &mut self,
        key: &RingKey,
        name: &str,
        passphrase: &[u8],
        cost: PassphraseCost,
    ) -> Result<(), KeyringError> {
        let at = self.recipients().position(|other| other == name);
        let at = at.ok_or_else(|| KeyringError::NoRecipient(name.to_owned()))?;
        if self.recipients[at].kind == Kind::KeyFile {
            return Err(KeyringError::HasKeyFile(name.to_owned()));
        }
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
    /// If the system gives no random numbers, or `key` is another ring's.
    pub fn rotate(&mut self, key: &RingKey) -> Result<u32, KeyringError> {
        self.must_open_with(key)?;
        let epoch = self.epoch().checked_add(1).ok_or(KeyringError::NoEpoch(u32::MAX))?;
        let master = MasterKey::generate(epoch)?;
        self.epochs.push((epoch, wrap(&key.0, &epoch_head(epoch), master.bytes())?));
        Ok(epoch)
    }

    /// The master keys of all epochs, for files of any of them.
    ///
    /// # Errors
    /// As [`Keyring::master_key`].
    pub fn master_keys(&self, key: &RingKey) -> Result<MasterKeys, KeyringError> {
        let all = self.epochs.iter().map(|(epoch, _)| self.master_key(key, *epoch));
        let mut all = all.collect::<Result<Vec<_>, _>>()?;
        let newest = all.pop().ok_or(KeyringError::NoEpoch(1))?;
        Ok(MasterKeys::new(all, newest))
    }

    /// Forgets the keys of the epochs before `epoch`: files that are sealed with them are lost. The newest
    /// one stays: no epoch is given out twice.
    pub fn forget_before(&mut self, epoch: u32) {
        let first = epoch.min(self.epoch());
        self.epochs.retain(|(number, _)| *number >= first);
    }
}

/// What is wrapped for an epoch is bound to this.
pub(super) fn epoch_head(epoch: u32) -> String {
    format!("epoch {epoch}")
}
