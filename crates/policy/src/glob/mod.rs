//! Globs over paths: their text, one glob, and many at once.

mod automaton;
mod component;
mod inclusion;
pub(crate) mod index;
mod overlap;
mod pairs;
mod spread;
mod syntax;

pub(crate) use automaton::{Glob, TwoPaths};
pub(crate) use inclusion::Compared;
pub(crate) use syntax::{GlobError, compile_exe, compile_path, has_special, unescaped};
