//! Clear and copy engines: an order of chunks, a chunk size and a kind of store.
//!
//! [`ClearSpec`] and [`CopySpec`] say what is wanted; `check` turns them into a [`Clearer`] or a
//! [`Copier`], which hold only what this processor can do and cannot fail on its account.
//!
//! Whatever the specification, every byte of the buffer is written, at any alignment and length;
//! the stores are visible to another thread before anything that this thread stores later; and the
//! compiler cannot drop them, though the buffer be dead afterwards.

#[cfg(all(not(miri), target_arch = "aarch64"))]
mod aarch64;
mod clearer;
mod copier;
mod kernel;
mod order;
mod portable;
mod spec;
mod store;
#[cfg(test)]
mod tests;
mod words;
#[cfg(all(not(miri), target_arch = "x86_64"))]
mod x86;

pub use clearer::Clearer;
pub use copier::Copier;
pub use order::Order;
pub use spec::{Chunk, ClearSpec, CopySpec};
pub use store::Store;
