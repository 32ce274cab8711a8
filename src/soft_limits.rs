//! Soft limits of this process, which are those of who starts it, raised to the hard ones.

use rustix::process::{Resource, Rlimit};

/// Writes for callers end at the hard limit, as they do in the bare directory for who raises their own:
/// the soft limit of who starts a server is not theirs. CMD of `run` was forked before and keeps its own.
pub(crate) fn raise_file_size() {
    raise(Resource::Fsize);
}

/// Most files that may be open at once.
pub(crate) fn raise_open_files() {
    raise(Resource::Nofile);
}

fn raise(resource: Resource) {
    let limit = rustix::process::getrlimit(resource);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Without it, the soft limit holds.
    let _ = rustix::process::setrlimit(resource, raised);
}
