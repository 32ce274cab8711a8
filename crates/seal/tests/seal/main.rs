//! Sealed files from outside: against a plain file, an attacker, and crashes.

mod at_once;
mod counting;
mod crash;
mod holes;
mod memory;
mod sealed;
mod space;
mod threads;
