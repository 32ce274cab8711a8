//! Stores of x86-64. The loops are assembly, so that a build without optimisation measures the same
//! instructions and the compiler cannot turn one kind into another.
#![expect(unsafe_code, reason = "kernels write through raw pointers and are assembly")]

use std::arch::asm;

use super::portable;

/// Size of a cache line in bytes; bodies of vector kernels start at a multiple of it.
const LINE: usize = 64;
/// Bytes that one turn of a vector loop handles.
const TURN: usize = 256;

/// Whether the processor has CLZERO (AMD since Zen).
pub(super) fn has_clzero() -> bool {
    use std::arch::x86_64::{__cpuid, CpuidResult};
    #[allow(unused_unsafe, reason = "the intrinsic became a safe function after Rust 1.90")]
    // SAFETY: every x86-64 processor has the instruction.
    let leaf = |number: u32| -> CpuidResult { unsafe { __cpuid(number) } };
    leaf(0x8000_0000).eax >= 0x8000_0008 && leaf(0x8000_0008).ebx & 1 == 1
}

/// Splits a range in the bytes before the first multiple of [`LINE`], a body of whole multiples of
/// `unit`, and the rest.
fn split(start: *mut u8, len: usize, unit: usize) -> (usize, usize) {
    let head = start.align_offset(LINE).min(len);
    (head, (len - head) / unit * unit)
}

/// Makes a pair of clear kernels (up, down) from a vector register and a store instruction. The
/// AVX-512 kernels use registers 16 and up, which need no VZEROUPPER; the AVX2 kernels use the
/// lower ones, end with it, and so clobber the upper halves of all sixteen.
macro_rules! clear_kernels {
    (
        $up:ident, $down:ident, $zero:literal,
        [$($up_store:literal),*], [$($down_store:literal),*], $end:literal
    ) => {
        /// Clears the range with ascending stores.
        ///
        /// # Safety
        /// The range is writable, and the processor has the instructions.
        pub(super) unsafe fn $up(start: *mut u8, len: usize) {
            let (head, body) = split(start, len, TURN);
            // SAFETY: head, body and rest partition the caller's range. The body starts at a
            // multiple of 64 and is a whole number of turns, so no store is unaligned or leaves it.
            unsafe {
                portable::clear_up(start, head);
                if body > 0 {
                    asm!(
                        $zero,
                        "2:",
                        $($up_store,)*
                        "add {at}, 256",
                        "cmp {at}, {end}",
                        "jb 2b",
                        $end,
                        at = inout(reg) start.add(head) => _,
                        end = in(reg) start.add(head + body),
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                        options(nostack),
                    );
                }
                portable::clear_up(start.add(head + body), len - head - body);
            }
        }

        /// Clears the range with descending stores.
        ///
        /// # Safety
        /// The range is writable, and the processor has the instructions.
        pub(super) unsafe fn $down(start: *mut u8, len: usize) {
            let (head, body) = split(start, len, TURN);
            // SAFETY: as in the ascending kernel.
            unsafe {
                portable::clear_down(start.add(head + body), len - head - body);
                if body > 0 {
                    asm!(
                        $zero,
                        "2:",
                        "sub {at}, 256",
                        $($down_store,)*
                        "cmp {at}, {begin}",
                        "ja 2b",
                        $end,
                        at = inout(reg) start.add(head + body) => _,
                        begin = in(reg) start.add(head),
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                        options(nostack),
                    );
                }
                portable::clear_down(start, head);
            }
        }
    };
}

clear_kernels!(
    clear_avx2_up,
    clear_avx2_down,
    "vpxor xmm0, xmm0, xmm0",
    [
        "vmovdqa [{at}], ymm0",
        "vmovdqa [{at} + 32], ymm0",
        "vmovdqa [{at} + 64], ymm0",
        "vmovdqa [{at} + 96], ymm0",
        "vmovdqa [{at} + 128], ymm0",
        "vmovdqa [{at} + 160], ymm0",
        "vmovdqa [{at} + 192], ymm0",
        "vmovdqa [{at} + 224], ymm0"
    ],
    [
        "vmovdqa [{at} + 224], ymm0",
        "vmovdqa [{at} + 192], ymm0",
        "vmovdqa [{at} + 160], ymm0",
        "vmovdqa [{at} + 128], ymm0",
        "vmovdqa [{at} + 96], ymm0",
        "vmovdqa [{at} + 64], ymm0",
        "vmovdqa [{at} + 32], ymm0",
        "vmovdqa [{at}], ymm0"
    ],
    "vzeroupper"
);
clear_kernels!(
    clear_nt_avx2_up,
    clear_nt_avx2_down,
    "vpxor xmm0, xmm0, xmm0",
    [
        "vmovntdq [{at}], ymm0",
        "vmovntdq [{at} + 32], ymm0",
        "vmovntdq [{at} + 64], ymm0",
        "vmovntdq [{at} + 96], ymm0",
        "vmovntdq [{at} + 128], ymm0",
        "vmovntdq [{at} + 160], ymm0",
        "vmovntdq [{at} + 192], ymm0",
        "vmovntdq [{at} + 224], ymm0"
    ],
    [
        "vmovntdq [{at} + 224], ymm0",
        "vmovntdq [{at} + 192], ymm0",
        "vmovntdq [{at} + 160], ymm0",
        "vmovntdq [{at} + 128], ymm0",
        "vmovntdq [{at} + 96], ymm0",
        "vmovntdq [{at} + 64], ymm0",
        "vmovntdq [{at} + 32], ymm0",
        "vmovntdq [{at}], ymm0"
    ],
    "vzeroupper"
);
clear_kernels!(
    clear_avx512_up,
    clear_avx512_down,
    "vpxord zmm16, zmm16, zmm16",
    [
        "vmovdqa64 [{at}], zmm16",
        "vmovdqa64 [{at} + 64], zmm16",
        "vmovdqa64 [{at} + 128], zmm16",
        "vmovdqa64 [{at} + 192], zmm16"
    ],
    [
        "vmovdqa64 [{at} + 192], zmm16",
        "vmovdqa64 [{at} + 128], zmm16",
        "vmovdqa64 [{at} + 64], zmm16",
        "vmovdqa64 [{at}], zmm16"
    ],
    ""
);
clear_kernels!(
    clear_nt_avx512_up,
    clear_nt_avx512_down,
    "vpxord zmm16, zmm16, zmm16",
    [
        "vmovntdq [{at}], zmm16",
        "vmovntdq [{at} + 64], zmm16",
        "vmovntdq [{at} + 128], zmm16",
        "vmovntdq [{at} + 192], zmm16"
    ],
    [
        "vmovntdq [{at} + 192], zmm16",
        "vmovntdq [{at} + 128], zmm16",
        "vmovntdq [{at} + 64], zmm16",
        "vmovntdq [{at}], zmm16"
    ],
    ""
);

/// Clears with `rep stosb`.
///
/// # Safety
/// The range is writable.
pub(super) unsafe fn clear_rep_up(start: *mut u8, len: usize) {
    // SAFETY: the direction flag is clear by the ABI, so exactly `len` bytes from `start` are
    // written.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") start => _, in("al") 0u8,
            options(nostack, preserves_flags));
    }
}

/// Clears with `rep stosb` downwards, which processors do byte by byte.
///
/// # Safety
/// The range is writable.
pub(super) unsafe fn clear_rep_down(start: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: writes `len` bytes from the last one down; the direction flag is cleared again.
    unsafe {
        asm!("std", "rep stosb", "cld", inout("rcx") len => _, inout("rdi") start.add(len - 1) => _,
            in("al") 0u8, options(nostack));
    }
}

/// Clears whole cache lines with CLZERO and the ends with plain stores.
///
/// # Safety
/// The range is writable, and the processor has CLZERO.
pub(super) unsafe fn clear_clzero_up(start: *mut u8, len: usize) {
    let (head, body) = split(start, len, LINE);
    // SAFETY: CLZERO writes the line that holds RAX; the body is whole lines of the caller's range.
    unsafe {
        portable::clear_up(start, head);
        if body > 0 {
            asm!("2:", "clzero", "add rax, 64", "cmp rax, {end}", "jb 2b",
                inout("rax") start.add(head) => _, end = in(reg) start.add(head + body),
                options(nostack));
        }
        portable::clear_up(start.add(head + body), len - head - body);
    }
}

/// As [`clear_clzero_up`], from the last line to the first.
///
/// # Safety
/// The range is writable, and the processor has CLZERO.
pub(super) unsafe fn clear_clzero_down(start: *mut u8, len: usize) {
    let (head, body) = split(start, len, LINE);
    // SAFETY: as in `clear_clzero_up`.
    unsafe {
        portable::clear_down(start.add(head + body), len - head - body);
        if body > 0 {
            asm!("2:", "sub rax, 64", "clzero", "cmp rax, {begin}", "ja 2b",
                inout("rax") start.add(head + body) => _, begin = in(reg) start.add(head),
                options(nostack));
        }
        portable::clear_down(start, head);
    }
}

/// Makes a pair of copy kernels (up, down), each with and without prefetch. A turn loads 256 bytes,
/// then stores them; `$store` is aligned at the destination.
macro_rules! copy_kernels {
    ($up:ident, $down:ident, [$($move:literal),*], $end:literal) => {
        copy_kernels!(@one $up, "", "add {from}, 256\n add {to}, 256\n sub {left}, 256\n jnz 2b",
            up, [$($move),*], $end);
        copy_kernels!(@one $down, "sub {from}, 256\n sub {to}, 256",
            "sub {left}, 256\n jnz 2b", down, [$($move),*], $end);
    };
    (
        @one $name:ident, $before:literal, $after:literal, $way:ident,
        [$($move:literal),*], $end:literal
    ) => {
        /// Copies the range; the data `prefetch_bytes` further on is prefetched unless that is 0.
        ///
        /// # Safety
        /// Both ranges of `len` bytes are valid and do not overlap; the processor has the
        /// instructions.
        pub(super) unsafe fn $name(
            to: *mut u8,
            from: *const u8,
            len: usize,
            prefetch_bytes: usize,
        ) {
            let (head, body) = split(to, len, TURN);
            let (first, last) = copy_kernels!(@ends $way, head, body);
            let ahead = copy_kernels!(@ahead $way, prefetch_bytes);
            // SAFETY: head, body and rest partition both of the caller's ranges. The body's stores
            // are aligned, loads need not be. Prefetching touches no memory, whatever the address.
            unsafe {
                copy_kernels!(@rest $way, to, from, first, head, body, len, true);
                if body > 0 && prefetch_bytes > 0 {
                    asm!("2:", $before,
                        "prefetchnta [{from} + {ahead}]", "prefetchnta [{from} + {ahead} + 64]",
                        "prefetchnta [{from} + {ahead} + 128]",
                        "prefetchnta [{from} + {ahead} + 192]",
                        $($move,)* $after, $end,
                        from = inout(reg) from.add(last) => _, to = inout(reg) to.add(last) => _,
                        left = inout(reg) body => _, ahead = in(reg) ahead,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                        options(nostack));
                } else if body > 0 {
                    asm!("2:", $before, $($move,)* $after, $end,
                        from = inout(reg) from.add(last) => _, to = inout(reg) to.add(last) => _,
                        left = inout(reg) body => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                        options(nostack));
                }
                copy_kernels!(@rest $way, to, from, first, head, body, len, false);
            }
        }
    };
    (@ends up, $head:ident, $body:ident) => { ($head, $head) };
    (@ends down, $head:ident, $body:ident) => { ($head, $head + $body) };
    (@ahead up, $bytes:ident) => { $bytes };
    (@ahead down, $bytes:ident) => { $bytes.wrapping_neg() };
    // Ascending: head before the body, rest after it. Descending: the other way round.
    (
        @rest up, $to:ident, $from:ident, $first:ident,
        $head:ident, $body:ident, $len:ident, true
    ) => {
        portable::copy_up($to, $from, $first, 0)
    };
    (
        @rest up, $to:ident, $from:ident, $first:ident,
        $head:ident, $body:ident, $len:ident, false
    ) => {
        {
            let done = $head + $body;
            portable::copy_up($to.add(done), $from.add(done), $len - done, 0)
        }
    };
    (
        @rest down, $to:ident, $from:ident, $first:ident,
        $head:ident, $body:ident, $len:ident, true
    ) => {
        {
            let done = $head + $body;
            portable::copy_down($to.add(done), $from.add(done), $len - done, 0)
        }
    };
    (
        @rest down, $to:ident, $from:ident, $first:ident,
        $head:ident, $body:ident, $len:ident, false
    ) => {
        portable::copy_down($to, $from, $first, 0)
    };
}

copy_kernels!(
    copy_avx2_up,
    copy_avx2_down,
    [
        "vmovdqu ymm0, [{from}]",
        "vmovdqu ymm1, [{from} + 32]",
        "vmovdqu ymm2, [{from} + 64]",
        "vmovdqu ymm3, [{from} + 96]",
        "vmovdqu ymm4, [{from} + 128]",
        "vmovdqu ymm5, [{from} + 160]",
        "vmovdqu ymm6, [{from} + 192]",
        "vmovdqu ymm7, [{from} + 224]",
        "vmovdqa [{to}], ymm0",
        "vmovdqa [{to} + 32], ymm1",
        "vmovdqa [{to} + 64], ymm2",
        "vmovdqa [{to} + 96], ymm3",
        "vmovdqa [{to} + 128], ymm4",
        "vmovdqa [{to} + 160], ymm5",
        "vmovdqa [{to} + 192], ymm6",
        "vmovdqa [{to} + 224], ymm7"
    ],
    "vzeroupper"
);
copy_kernels!(
    copy_nt_avx2_up,
    copy_nt_avx2_down,
    [
        "vmovdqu ymm0, [{from}]",
        "vmovdqu ymm1, [{from} + 32]",
        "vmovdqu ymm2, [{from} + 64]",
        "vmovdqu ymm3, [{from} + 96]",
        "vmovdqu ymm4, [{from} + 128]",
        "vmovdqu ymm5, [{from} + 160]",
        "vmovdqu ymm6, [{from} + 192]",
        "vmovdqu ymm7, [{from} + 224]",
        "vmovntdq [{to}], ymm0",
        "vmovntdq [{to} + 32], ymm1",
        "vmovntdq [{to} + 64], ymm2",
        "vmovntdq [{to} + 96], ymm3",
        "vmovntdq [{to} + 128], ymm4",
        "vmovntdq [{to} + 160], ymm5",
        "vmovntdq [{to} + 192], ymm6",
        "vmovntdq [{to} + 224], ymm7"
    ],
    "vzeroupper"
);
copy_kernels!(
    copy_avx512_up,
    copy_avx512_down,
    [
        "vmovdqu64 zmm16, [{from}]",
        "vmovdqu64 zmm17, [{from} + 64]",
        "vmovdqu64 zmm18, [{from} + 128]",
        "vmovdqu64 zmm19, [{from} + 192]",
        "vmovdqa64 [{to}], zmm16",
        "vmovdqa64 [{to} + 64], zmm17",
        "vmovdqa64 [{to} + 128], zmm18",
        "vmovdqa64 [{to} + 192], zmm19"
    ],
    ""
);
copy_kernels!(
    copy_nt_avx512_up,
    copy_nt_avx512_down,
    [
        "vmovdqu64 zmm16, [{from}]",
        "vmovdqu64 zmm17, [{from} + 64]",
        "vmovdqu64 zmm18, [{from} + 128]",
        "vmovdqu64 zmm19, [{from} + 192]",
        "vmovntdq [{to}], zmm16",
        "vmovntdq [{to} + 64], zmm17",
        "vmovntdq [{to} + 128], zmm18",
        "vmovntdq [{to} + 192], zmm19"
    ],
    ""
);

/// Copies with `rep movsb`.
///
/// # Safety
/// Both ranges of `len` bytes are valid and do not overlap.
pub(super) unsafe fn copy_rep_up(to: *mut u8, from: *const u8, len: usize, _prefetch_bytes: usize) {
    // SAFETY: the direction flag is clear by the ABI, so exactly `len` bytes upwards are copied.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// Copies with `rep movsb` downwards, which processors do byte by byte.
///
/// # Safety
/// Both ranges of `len` bytes are valid and do not overlap.
pub(super) unsafe fn copy_rep_down(
    to: *mut u8,
    from: *const u8,
    len: usize,
    _prefetch_bytes: usize,
) {
    if len == 0 {
        return;
    }
    // SAFETY: copies `len` bytes from the last one down; the direction flag is cleared again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.add(len - 1) => _,
            inout("rsi") from.add(len - 1) => _, options(nostack));
    }
}

/// Orders non-temporal stores and CLZERO before every later store, such as the one that publishes a
/// buffer.
pub(super) fn store_fence() {
    // SAFETY: part of the x86-64 baseline; touches no memory by itself. The compiler must assume
    // that the assembly reads all memory, so it moves no store across and drops none before.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}
