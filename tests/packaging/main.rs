//! What packages bring along, checked from outside: the Debian package, man pages, completions,
//! examples, units, helpers of mount(8), and pages with commands.

mod commands;
mod containers;
mod deb;
mod group;
mod helper;
mod lacking;
#[path = "../support/mounting.rs"]
mod mounting;
mod pages;
mod units;
mod watching;
