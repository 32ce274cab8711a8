//! Benchmarks of Tollgate beside its peers.

fn main() {}
