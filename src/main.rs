//! The `tollgate` binary: command line, servers, demo.

fn main() {}
