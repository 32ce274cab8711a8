//! Sealed files from outside: against a plain file, an attacker, and crashes.

mod at_once;
mod crash;
mod holes;
mod memory;
mod sealed;
mod space;
mod threads;
