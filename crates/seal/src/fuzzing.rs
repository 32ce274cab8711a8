//! One run of the fuzz target: bytes as a sealed file, as changes to one, and as a keyring.

use std::cell::RefCell;
use std::io;

use zeroize::Zeroizing;

use crate::{Keyring, MasterKey, Options, SealedFile, Store, stat};

/// Bytes in memory.
#[derive(Clone, Debug, Default)]
struct Memory(RefCell<Vec<u8>>);

impl Store for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.0.borrow();
        let start = usize::try_from(offset).ok();
        let part = start.and_then(|start| bytes.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, new: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.0.borrow_mut();
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if bytes.len() < start + new.len() {
            bytes.resize(start + new.len(), 0);
        }
        bytes[start..start + new.len()].copy_from_slice(new);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens `data` as a sealed file and as a keyring; then changes a good file as `data` says, and
/// checks that what is read of it is right or an error.
///
/// # Panics
/// If wrong bytes are read.
pub fn fuzz_one(data: &[u8]) {
    let key = MasterKey::from_bytes(1, Zeroizing::new([7; 32]));
    let raw = Memory(RefCell::new(data.to_vec()));
    let _ = stat(&raw, &key, b"d");
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(ring) = Keyring::parse(text)
    {
        assert_eq!(Keyring::parse(&ring.to_string()).ok(), Some(ring));
    }
    let plain: Vec<u8> = (0..20_000_u32).map(|n| u8::try_from(n % 251).expect("small")).collect();
    let mut store = Memory::default();
    let written = SealedFile::create(&store, &key, b"d", Options::default())
        .and_then(|file| file.write_at(&plain, 5000).and_then(|()| file.commit()));
    written.expect("memory takes every write");
    for change in data.chunks_exact(3) {
        let bytes = store.0.get_mut();
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) * 7 % bytes.len();
        bytes[at] ^= change[2];
    }
    let Ok(file) = SealedFile::open(&store, &key, b"d") else { return };
    let mut buffer = vec![0; 30_000];
    if let Ok(length) = file.read_at(&mut buffer, 0) {
        assert_eq!(length, 25_000);
        assert!(buffer[..5000].iter().all(|byte| *byte == 0) && buffer[5000..length] == plain);
    }
}
