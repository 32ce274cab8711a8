//! Sealed files from outside: against a plain file, an attacker, and crashes.

mod crash;
mod memory;
mod sealed;
