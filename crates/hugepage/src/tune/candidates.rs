//! What is tried for each row of a plan.

use crate::engine::{Chunk, ClearSpec, Clearer, Copier, CopySpec, Order, Store};
use crate::plan::Cell;

/// Kinds of store for a row, each forward and in one piece; for rows with a target also the hybrid.
pub(super) fn stores(cell: Cell) -> Vec<Clearer> {
    let forward = Store::supported().filter(|store| *store != Store::Hybrid);
    let mut specs: Vec<ClearSpec> = forward.map(ClearSpec::forward).collect();
    if matches!(cell, Cell::Target | Cell::TargetMany) {
        // Rep and the narrow vectors have not been seen to win with a target, and would cost time.
        specs.retain(|spec| !matches!(spec.store, Store::Rep | Store::Avx2 | Store::NtAvx2));
        specs.extend([64 << 10, 256 << 10].map(|w| ClearSpec::forward(Store::Hybrid).window(w)));
    }
    checked(specs)
}

/// Chunk sizes and orders for the store that won a row, the winner itself first. What is the same
/// by construction is left out: in one piece there is no order but the direction of the stores.
pub(super) fn chunks_and_orders(winner: &Clearer) -> Vec<Clearer> {
    const CHUNKS: [Chunk; 4] =
        [Chunk::kib::<4>(), Chunk::kib::<16>(), Chunk::kib::<64>(), Chunk::kib::<256>()];
    let winner = winner.spec();
    let mut specs = vec![winner, winner.order(Order::Descending)];
    for order in Order::ALL {
        specs.extend(CHUNKS.map(|chunk| winner.order(order).chunk(chunk)));
    }
    checked(specs)
}

fn checked(specs: Vec<ClearSpec>) -> Vec<Clearer> {
    specs.into_iter().filter_map(|spec| spec.check().ok()).collect()
}

pub(super) fn copiers() -> Vec<Copier> {
    use Store::{Avx2, Avx512, NtAvx2, NtAvx512, Plain, Stnp};
    let mut specs: Vec<CopySpec> =
        [Plain, Avx2, Avx512, NtAvx2, NtAvx512, Stnp].map(CopySpec::forward).to_vec();
    for store in [NtAvx2, NtAvx512, Stnp] {
        specs.extend([512, 2048].map(|bytes| CopySpec::forward(store).prefetch(bytes)));
    }
    specs.into_iter().filter_map(|spec| spec.check().ok()).collect()
}
