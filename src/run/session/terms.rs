//! What the second `run` of a session has to know of the first.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// As JSON, in one message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// The directory of the view.
    pub(crate) dir: PathBuf,
    /// `--user` of the first.
    pub(crate) user: Option<String>,
    /// The sockets at which the servers answer that user.
    pub(crate) control: Option<String>,
    pub(crate) fenced: bool,
    pub(crate) own_network: bool,
    /// Variables by which programs find the proxy.
    pub(crate) proxy: Vec<(String, String)>,
    /// Those of the limits.
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
    /// What CMD writes to besides DIR.
    pub(crate) writable: Vec<PathBuf>,
}
