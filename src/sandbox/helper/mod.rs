//! Processes beside a server that do for it what it has given up.
//!
//! A server that is confined to DIR may neither look at callers nor unmount: the kernel forbids both to
//! a process in a Landlock domain. So it starts small processes before it enters one. They take
//! requests of a few bytes, and nothing that a caller wrote reaches them but names of users in a
//! policy. Whoever takes the server over can have them do what stands here, and no more:
//!
//! * the [`Looker`] tells which program a thread runs, in which system call it waits and in which
//!   namespaces it is, and opens, to be read, the files that the policy was read from at the start;
//! * the [`Mounter`] mounts the native directories of this view, unmounts this view, and ends
//!   its connection when the server is gone;
//! * the [`Ender`] ends the connections of a `run` when its server is gone, and those that CMD made and that
//!   keep CMD's processes.

mod channel;
mod ender;
mod left;
mod looker;
mod mounter;

pub(crate) use ender::Ender;
pub(crate) use looker::{Looker, of_this_process};
pub(crate) use mounter::{Mounter, NotUnmounted};
