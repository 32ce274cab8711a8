//! Stores of AArch64: DC ZVA, which clears a block of memory without reading it, and STNP, whose
//! pairs of registers the processor need not keep in its caches. The loops are assembly, so that a
//! build without optimisation measures the same instructions.
#![expect(unsafe_code, reason = "kernels write through raw pointers and are assembly")]

use std::arch::asm;

use super::portable;

/// Bytes that one turn of an STNP loop handles; its body starts at a multiple of it.
const TURN: usize = 64;
/// A block of DC ZVA is between these sizes on every processor that has been built.
const BLOCKS: std::ops::RangeInclusive<usize> = 16..=2048;

/// Bytes that one DC ZVA clears, unless the system forbids it to programs.
pub(super) fn zva_block() -> Option<usize> {
    let id: u64;
    // SAFETY: every program may read this register; nothing else happens.
    unsafe { asm!("mrs {}, dczid_el0", out(reg) id, options(nomem, nostack, preserves_flags)) }
    // Bit 4 forbids the instruction; the bits below it are the binary logarithm of 4-byte words.
    let block = 4_usize << (id & 0xf);
    (id & 0x10 == 0 && BLOCKS.contains(&block)).then_some(block)
}

/// The bytes before the first multiple of `unit`, and those of whole multiples of it behind them.
fn split(start: *mut u8, len: usize, unit: usize) -> (usize, usize) {
    let head = start.align_offset(unit).min(len);
    (head, (len - head) / unit * unit)
}

/// Clears the range with ascending DC ZVA.
///
/// # Safety
/// The range is writable, and [`zva_block`] is not `None`.
pub(super) unsafe fn clear_zva_up(start: *mut u8, len: usize) {
    let Some(block) = zva_block() else { unreachable!("checked when the engine was made") };
    let (head, body) = split(start, len, block);
    // SAFETY: head, body and rest partition the caller's range. The body starts at a multiple of
    // the block and is a whole number of blocks, so that no DC ZVA clears a byte outside of it.
    unsafe {
        portable::clear_up(start, head);
        if body > 0 {
            asm!(
                "2:",
                "dc zva, {at}",
                "add {at}, {at}, {block}",
                "cmp {at}, {end}",
                "b.lo 2b",
                at = inout(reg) start.add(head) => _,
                block = in(reg) block,
                end = in(reg) start.add(head + body),
                options(nostack),
            );
        }
        portable::clear_up(start.add(head + body), len - head - body);
    }
}

/// Clears the range with descending DC ZVA.
///
/// # Safety
/// As of [`clear_zva_up`].
pub(super) unsafe fn clear_zva_down(start: *mut u8, len: usize) {
    let Some(block) = zva_block() else { unreachable!("checked when the engine was made") };
    let (head, body) = split(start, len, block);
    // SAFETY: as in the ascending kernel.
    unsafe {
        portable::clear_down(start.add(head + body), len - head - body);
        if body > 0 {
            asm!(
                "2:",
                "sub {at}, {at}, {block}",
                "dc zva, {at}",
                "cmp {at}, {begin}",
                "b.hi 2b",
                at = inout(reg) start.add(head + body) => _,
                block = in(reg) block,
                begin = in(reg) start.add(head),
                options(nostack),
            );
        }
        portable::clear_down(start, head);
    }
}

/// Clears the range with ascending STNP.
///
/// # Safety
/// The range is writable.
pub(super) unsafe fn clear_stnp_up(start: *mut u8, len: usize) {
    let (head, body) = split(start, len, TURN);
    // SAFETY: head, body and rest partition the caller's range, and the body is whole turns.
    unsafe {
        portable::clear_up(start, head);
        if body > 0 {
            asm!(
                "movi v0.2d, #0",
                "2:",
                "stnp q0, q0, [{at}]",
                "stnp q0, q0, [{at}, #32]",
                "add {at}, {at}, #64",
                "cmp {at}, {end}",
                "b.lo 2b",
                at = inout(reg) start.add(head) => _,
                end = in(reg) start.add(head + body),
                out("v0") _,
                options(nostack),
            );
        }
        portable::clear_up(start.add(head + body), len - head - body);
    }
}

/// Clears the range with descending STNP.
///
/// # Safety
/// The range is writable.
pub(super) unsafe fn clear_stnp_down(start: *mut u8, len: usize) {
    let (head, body) = split(start, len, TURN);
    // SAFETY: as in the ascending kernel.
    unsafe {
        portable::clear_down(start.add(head + body), len - head - body);
        if body > 0 {
            asm!(
                "movi v0.2d, #0",
                "2:",
                "sub {at}, {at}, #64",
                "stnp q0, q0, [{at}, #32]",
                "stnp q0, q0, [{at}]",
                "cmp {at}, {begin}",
                "b.hi 2b",
                at = inout(reg) start.add(head + body) => _,
                begin = in(reg) start.add(head),
                out("v0") _,
                options(nostack),
            );
        }
        portable::clear_down(start, head);
    }
}

/// Copies with ascending STNP; the source is prefetched `prefetch_bytes` ahead, as what is read once.
///
/// # Safety
/// Both ranges of `len` bytes are valid and do not overlap.
pub(super) unsafe fn copy_stnp_up(to: *mut u8, from: *const u8, len: usize, prefetch_bytes: usize) {
    let (head, body) = split(to, len, TURN);
    let done = head + body;
    // SAFETY: head, body and rest partition both ranges, and the body is whole turns. A prefetch
    // beyond the source reads nothing and cannot fail.
    unsafe {
        portable::copy_up(to, from, head, 0);
        if body > 0 {
            asm!(
                "2:",
                "prfm pldl1strm, [{from}, {ahead}]",
                "ldp q0, q1, [{from}]",
                "ldp q2, q3, [{from}, #32]",
                "stnp q0, q1, [{to}]",
                "stnp q2, q3, [{to}, #32]",
                "add {from}, {from}, #64",
                "add {to}, {to}, #64",
                "cmp {to}, {end}",
                "b.lo 2b",
                from = inout(reg) from.add(head) => _,
                to = inout(reg) to.add(head) => _,
                ahead = in(reg) prefetch_bytes,
                end = in(reg) to.add(done),
                out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                options(nostack),
            );
        }
        portable::copy_up(to.add(done), from.add(done), len - done, 0);
    }
}

/// Copies with descending STNP.
///
/// # Safety
/// As of [`copy_stnp_up`].
pub(super) unsafe fn copy_stnp_down(
    to: *mut u8,
    from: *const u8,
    len: usize,
    _prefetch_bytes: usize,
) {
    let (head, body) = split(to, len, TURN);
    let done = head + body;
    // SAFETY: as in the ascending kernel.
    unsafe {
        portable::copy_down(to.add(done), from.add(done), len - done, 0);
        if body > 0 {
            asm!(
                "2:",
                "sub {from}, {from}, #64",
                "sub {to}, {to}, #64",
                "ldp q0, q1, [{from}]",
                "ldp q2, q3, [{from}, #32]",
                "stnp q2, q3, [{to}, #32]",
                "stnp q0, q1, [{to}]",
                "cmp {to}, {begin}",
                "b.hi 2b",
                from = inout(reg) from.add(done) => _,
                to = inout(reg) to.add(done) => _,
                begin = in(reg) to.add(head),
                out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                options(nostack),
            );
        }
        portable::copy_down(to, from, head, 0);
    }
}

/// Orders all stores before every later one, such as the one that publishes a buffer. On this
/// architecture that holds for no store by itself, those of the C library's memset included.
pub(super) fn store_fence() {
    // SAFETY: touches no memory by itself. The compiler must assume that the assembly reads all
    // memory, so it moves no store across and drops none before.
    unsafe { asm!("dmb ishst", options(nostack, preserves_flags)) }
}
