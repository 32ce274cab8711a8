use std::mem::MaybeUninit;

use super::*;
use crate::error::Error;
use proptest::prelude::*;

const CHUNKS: [Chunk; 6] = [
    Chunk::kib::<4>(),
    Chunk::kib::<8>(),
    Chunk::kib::<16>(),
    Chunk::kib::<32>(),
    Chunk::kib::<64>(),
    Chunk::WHOLE,
];
const MARK: u8 = 0xA5;

/// Under Miri every byte costs a microsecond or so.
const LONGEST: usize = if cfg!(miri) { 9000 } else { 150_000 };
const CASES: u32 = if cfg!(miri) { 6 } else { 1500 };

fn config() -> ProptestConfig {
    ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() }
}

/// Lengths of both kinds: near the sizes at which kernels change course, and any.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..600, 4000usize..4500, 600usize..LONGEST]
}

fn specs() -> impl Strategy<Value = ClearSpec> {
    let stores: Vec<Store> = Store::supported().collect();
    (
        proptest::sample::select(stores),
        proptest::sample::select(&Order::ALL[..]),
        proptest::sample::select(&CHUNKS[..]),
        prop_oneof![Just(0usize), Just(1), Just(4096), Just(64 << 10), 0usize..200_000],
    )
        .prop_map(|(store, order, chunk, window)| {
            ClearSpec::forward(store).order(order).chunk(chunk).window(window)
        })
}

/// A buffer with guards on both sides, and the part of it that is `offset` bytes past a cache line.
fn guarded(offset: usize, len: usize) -> (Vec<u8>, usize) {
    let buffer = vec![MARK; len + 256];
    let line = buffer.as_ptr().align_offset(64);
    (buffer, if line == usize::MAX { offset } else { line + 64 + offset })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn clears_the_buffer_and_no_byte_beside_it(
        spec in specs(), len in length(), offset in 0usize..64, at in 0usize..LONGEST,
    ) {
        let (mut buffer, start) = guarded(offset, len);
        let clearer = spec.check().unwrap();
        if len == 0 {
            clearer.clear(&mut buffer[start..start]);
        } else {
            clearer.clear_towards(&mut buffer[start..start + len], at % len).unwrap();
        }
        let mut expected = vec![MARK; buffer.len()];
        expected[start..start + len].fill(0);
        prop_assert!(buffer == expected, "{spec}");
    }

    #[test]
    fn copies_the_buffer_and_no_byte_beside_it(
        spec in specs(), len in length(), offset in 0usize..64, from_offset in 0usize..64,
        at in 0usize..LONGEST, prefetch_bytes in prop_oneof![Just(0usize), Just(512), 0usize..9000],
    ) {
        let spec = CopySpec { clear: spec, prefetch_bytes };
        if matches!(spec.clear.store, Store::Clzero | Store::Zva) {
            prop_assert!(spec.check().is_err());
            return Ok(());
        }
        let (mut buffer, start) = guarded(offset, len);
        let (mut source, source_start) = guarded(from_offset, len);
        for (index, byte) in source.iter_mut().enumerate() {
            *byte = u8::try_from(index * 31 % 251).unwrap();
        }
        let copier = spec.check().unwrap();
        let from = &source[source_start..source_start + len];
        let to = &mut buffer[start..start + len];
        if len == 0 {
            copier.copy(to, from).unwrap();
        } else {
            copier.copy_towards(to, from, at % len).unwrap();
        }
        let mut expected = vec![MARK; buffer.len()];
        expected[start..start + len].copy_from_slice(from);
        prop_assert!(buffer == expected, "{spec}");
    }

    #[test]
    fn a_specification_prints_as_it_is_read(spec in specs(), prefetch in 0usize..10) {
        let hybrid = spec.store == Store::Hybrid;
        let spec = if hybrid { spec } else { spec.window(ClearSpec::WINDOW_BYTES) };
        prop_assert_eq!(spec.to_string().parse::<ClearSpec>().unwrap(), spec);
        let copy = CopySpec { clear: spec, prefetch_bytes: prefetch * 64 };
        prop_assert_eq!(copy.to_string().parse::<CopySpec>().unwrap(), copy);
    }
}

/// Every kind, order and chunk without chance: one whole huge page and a piece, at an odd address.
#[test]
#[cfg_attr(miri, ignore = "two megabytes, too long for the interpreter")]
fn every_kind_order_and_chunk_on_more_than_a_huge_page() {
    let len = (2 << 20) + 4097;
    let source: Vec<u8> = (0..len).map(|index| u8::try_from(index % 253).unwrap()).collect();
    let mut buffer = vec![MARK; len + 2];
    for store in Store::supported() {
        for order in Order::ALL {
            for chunk in CHUNKS {
                let spec = ClearSpec::forward(store).order(order).chunk(chunk);
                buffer.fill(MARK);
                spec.check().unwrap().clear_towards(&mut buffer[1..=len], 1 << 20).unwrap();
                let clear = buffer[1..=len].iter().all(|byte| *byte == 0);
                assert!(clear && buffer[0] == MARK && buffer[len + 1] == MARK, "{spec}");
                let copy = CopySpec { clear: spec, prefetch_bytes: 512 };
                if let Ok(copier) = copy.check() {
                    copier.copy(&mut buffer[1..=len], &source).unwrap();
                    assert!(buffer[1..=len] == source[..], "{copy}");
                }
            }
        }
    }
}

#[test]
fn bad_words_and_sizes_are_named() {
    let error = "nt-avx1024".parse::<ClearSpec>().unwrap_err().to_string();
    assert!(error.contains("`nt-avx1024`") && error.contains("nt-avx512, clzero"), "{error}");
    assert!("plain sideways".parse::<ClearSpec>().unwrap_err().to_string().contains("descending"));
    assert!(matches!("plain 4097".parse::<ClearSpec>(), Err(Error::Unaligned { .. })));
    assert!(matches!("plain 0K".parse::<ClearSpec>(), Err(Error::Zero { .. })));
    assert!(matches!("plain prefetch=64".parse::<ClearSpec>(), Err(Error::BadWord { .. })));
    let copier = CopySpec::forward(Store::Plain).check().unwrap();
    let error = copier.copy(&mut [0; 3], &[0; 4]).unwrap_err();
    assert_eq!(error, Error::LengthMismatch { source_bytes: 4, destination_bytes: 3 });
    let clearer = ClearSpec::forward(Store::Plain).check().unwrap();
    let error = clearer.clear_towards(&mut [0; 3], 3).unwrap_err();
    assert_eq!(error, Error::TargetOutside { target: 3, len: 3 });
}

#[test]
fn uninitialised_memory_becomes_bytes() {
    let mut buffer = Box::new([const { MaybeUninit::uninit() }; 5000]);
    let clearer = ClearSpec::forward(Store::Plain).check().unwrap();
    assert_eq!(clearer.clear_uninit(&mut buffer[..]), [0; 5000]);
}

#[test]
fn the_portable_kind_is_always_there() {
    assert!(Store::Plain.is_supported());
    if cfg!(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64")))) {
        assert_eq!(Store::supported().collect::<Vec<_>>(), [Store::Plain]);
        let error = ClearSpec::forward(Store::NtAvx2).check().unwrap_err().to_string();
        assert!(error.contains("nt-avx2") && error.contains("plain"), "{error}");
    }
}

/// Every processor of this architecture has them, emulated ones too.
#[cfg(all(not(miri), target_arch = "aarch64"))]
#[test]
fn an_aarch64_processor_has_its_kinds() {
    let supported: Vec<Store> = Store::supported().collect();
    assert_eq!(supported, [Store::Plain, Store::Zva, Store::Stnp, Store::Hybrid]);
}
