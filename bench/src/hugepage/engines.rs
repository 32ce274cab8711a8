//! The contestants, and the names of their columns.

use tollgate_hugepage::{Chunk, ClearPlan, ClearSpec, Clearer, CopySpec, Order, Situation, Store};

use super::arena::PAGE;

/// The engine that the plan of this machine has for the row at hand.
pub(super) const PLAN: &str = "chosen plan";
/// The C library's memset or memcpy.
pub(super) const LIBC: &str = "libc";
/// 4 KiB chunks that end at the target: what the kernel did when the discussion began.
pub(super) const TARGET_LAST: &str = "4K target-last";

/// A contestant and the name of its column.
pub(super) struct Engine {
    pub(super) name: String,
    pub(super) clearer: Clearer,
}

/// The ways to clear that this processor has, the chosen one first.
pub(super) fn engines(chosen: &Clearer) -> Vec<Engine> {
    let mut engines = vec![Engine { name: PLAN.into(), clearer: *chosen }];
    for (name, spec) in ways_to_clear() {
        if let Ok(clearer) = spec.check() {
            engines.push(Engine { name, clearer });
        }
    }
    engines
}

pub(super) fn ways_to_clear() -> Vec<(String, ClearSpec)> {
    let kinds = Store::ALL.into_iter().filter(|store| *store != Store::Hybrid);
    let mut ways: Vec<_> =
        kinds.map(|store| (store_name(store), ClearSpec::forward(store))).collect();
    let four_kib = ClearSpec::forward(Store::Plain).chunk(Chunk::kib::<4>());
    let hybrid = ClearSpec::forward(Store::Hybrid);
    ways.extend([
        ("hybrid 64K".to_owned(), hybrid),
        ("hybrid 256K".to_owned(), hybrid.window(256 << 10)),
        ("4K reverse".to_owned(), four_kib.order(Order::Reverse)),
        (TARGET_LAST.to_owned(), four_kib.order(Order::TargetLast)),
        ("neighbourhood-last".to_owned(), four_kib.order(Order::NeighbourhoodLast)),
        ("descending".to_owned(), ClearSpec::forward(Store::Avx2).order(Order::Descending)),
    ]);
    ways
}

pub(super) fn ways_to_copy() -> Vec<(String, CopySpec)> {
    let kinds =
        Store::ALL.into_iter().filter(|s| !matches!(s, Store::Hybrid | Store::Clzero | Store::Zva));
    let mut ways: Vec<_> =
        kinds.map(|store| (store_name(store), CopySpec::forward(store))).collect();
    let reverse = ClearSpec::forward(Store::Plain).chunk(Chunk::kib::<4>()).order(Order::Reverse);
    ways.push(("4K reverse".into(), CopySpec { clear: reverse, prefetch_bytes: 0 }));
    for store in [Store::NtAvx2, Store::NtAvx512] {
        ways.push((format!("{store} prefetch"), CopySpec::forward(store).prefetch(2048)));
    }
    ways
}

fn store_name(store: Store) -> String {
    if store == Store::Plain { LIBC.into() } else { store.to_string() }
}

/// The names of `engines`, as the report wants them.
pub(super) fn names(engines: &[Engine]) -> Vec<&str> {
    engines.iter().map(|engine| engine.name.as_str()).collect()
}

/// The rows of a plan differ by the situation; most of the benchmark is about cold buffers.
pub(super) fn cold(plan: &ClearPlan) -> &Clearer {
    plan.clearer(Situation::cold(PAGE))
}
