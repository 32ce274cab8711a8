//! The shape of the published measurements of affinity scopes: disk encryption on a work queue.
//!
//! Issuers keep a fixed number of 32 KiB blocks going, as `fio` does with random reads and writes
//! and `verify=sha512`. A write is hashed by the issuer and encrypted on the queue; a read is
//! decrypted on the queue and verified by the issuer. There is no disk.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::digest::{SHA512, digest};
use tollgate_workqueue::{Handle, Queue};

use super::work::cpu_time;

/// Bytes of a block, without its authentication tag.
pub(super) const BLOCK_BYTES: usize = 32 * 1024;

/// What one run came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    /// MiB encrypted and decrypted per second.
    pub mib_per_s: f64,
    /// CPU time of the process over that of all usable CPUs, in percent.
    pub cpu_percent: f64,
}

/// Who issues, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Threads that issue blocks.
    pub issuers: usize,
    /// Blocks that each of them keeps going.
    pub depth: usize,
    /// For how long.
    pub time: Duration,
}

/// Carries out `plan` on `queue`; `cpus` are what its CPU time is a share of.
///
/// # Errors
/// When the queue refuses a job, a job panics, or a block does not come back as it was.
pub(super) fn run(queue: &Queue, cpus: usize, plan: Plan) -> Result<Outcome> {
    let (start, used) = (Instant::now(), cpu_time());
    let deadline = start + plan.time;
    let blocks: usize = thread::scope(|scope| {
        let issuer = |index| scope.spawn(move || issue(queue, index, plan.depth, deadline));
        let issuers: Vec<_> = (0..plan.issuers).map(issuer).collect();
        let join = |issuer: thread::ScopedJoinHandle<'_, Result<usize>>| {
            issuer.join().map_err(|_| anyhow!("an issuer panicked"))?
        };
        issuers.into_iter().map(join).sum::<Result<usize>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let mib = (blocks * BLOCK_BYTES) as f64 / f64::from(1 << 20);
    let cpu_percent = 100.0 * (cpu_time() - used).as_secs_f64() / (seconds * cpus as f64);
    Ok(Outcome { mib_per_s: mib / seconds, cpu_percent })
}

/// A block on its way through the queue.
struct Flight {
    job: Handle<Result<Block>>,
    hash: ring::digest::Digest,
    sealed: bool,
}

struct Block {
    bytes: Vec<u8>,
    /// Never used twice under one key: the issuer's number and a count.
    nonce: [u8; 12],
}

/// One issuer until the deadline; returns how many jobs it had done.
fn issue(queue: &Queue, index: usize, depth: usize, deadline: Instant) -> Result<usize> {
    let mut nonces = Nonces { issuer: u32::try_from(index)?, next: 0 };
    let mut flights = VecDeque::with_capacity(depth);
    for _ in 0..depth {
        flights.push_back(write(queue, vec![0x5A; BLOCK_BYTES], &mut nonces)?);
    }
    let mut done = 0;
    while let Some(Flight { job, hash, sealed }) = flights.pop_front() {
        let block = job.wait()??;
        done += 1;
        if !sealed {
            let found = digest(&SHA512, &block.bytes);
            ensure!(found.as_ref() == hash.as_ref(), "a block came back changed");
        }
        if Instant::now() < deadline {
            flights.push_back(if sealed {
                read(queue, block, hash)?
            } else {
                write(queue, block.bytes, &mut nonces)?
            });
        }
    }
    Ok(done)
}

fn write(queue: &Queue, mut bytes: Vec<u8>, nonces: &mut Nonces) -> Result<Flight> {
    let nonce = nonces.next();
    // Each block differs from the last, so a block that was not written cannot verify.
    bytes[..nonce.len()].copy_from_slice(&nonce);
    let hash = digest(&SHA512, &bytes);
    let job = queue.spawn(move || seal(Block { bytes, nonce }))?;
    Ok(Flight { job, hash, sealed: true })
}

fn read(queue: &Queue, block: Block, hash: ring::digest::Digest) -> Result<Flight> {
    let job = queue.spawn(move || open(block))?;
    Ok(Flight { job, hash, sealed: false })
}

fn seal(mut block: Block) -> Result<Block> {
    let nonce = Nonce::assume_unique_for_key(block.nonce);
    key()?
        .seal_in_place_append_tag(nonce, Aad::empty(), &mut block.bytes)
        .map_err(|_| anyhow!("a block could not be encrypted"))?;
    Ok(block)
}

fn open(mut block: Block) -> Result<Block> {
    let nonce = Nonce::assume_unique_for_key(block.nonce);
    key()?
        .open_in_place(nonce, Aad::empty(), &mut block.bytes)
        .map_err(|_| anyhow!("a block could not be decrypted"))?;
    block.bytes.truncate(BLOCK_BYTES);
    Ok(block)
}

/// A key that protects nothing.
fn key() -> Result<&'static LessSafeKey> {
    static KEY: OnceLock<Option<LessSafeKey>> = OnceLock::new();
    KEY.get_or_init(|| Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).ok()?)))
        .as_ref()
        .ok_or_else(|| anyhow!("no AES-256-GCM key could be made"))
}

struct Nonces {
    issuer: u32,
    next: u64,
}

impl Nonces {
    fn next(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.issuer.to_le_bytes());
        nonce[4..].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_as_they_were_and_changed_ones_do_not() {
        let mut nonces = Nonces { issuer: 1, next: 0 };
        let block = || Block { bytes: vec![9; BLOCK_BYTES], nonce: [3; 12] };
        let sealed = seal(block()).expect("sealed");
        assert_ne!(sealed.bytes[..64], block().bytes[..64]);
        assert_eq!(open(sealed).expect("opened").bytes, block().bytes);
        let mut sealed = seal(block()).expect("sealed");
        sealed.bytes[100] ^= 1;
        assert!(open(sealed).is_err());
        assert_ne!(nonces.next(), nonces.next());
    }
}
