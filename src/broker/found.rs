//! The broker that a server finds.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::{CapabilitySet, capabilities};
use serde_json::{Value, json};
use tollgate_broker::{Client, DEFAULT_SOCKET, RegisterError};
use tollgate_fuse::Registrar;

use crate::cli::BrokerChoice;

/// Said where there is none.
pub(crate) const WOULD_HELP: &str = "; the broker would help, which root enables: `systemctl \
                                     enable --now tollgate-broker.socket`";

/// The number that the initial user namespace has in /proc (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xefff_fffd;

/// A broker that registers this server's files.
#[derive(Debug)]
pub(crate) struct Broker {
    client: Client,
    registered: AtomicU64,
    refused: AtomicU64,
}

/// The broker to use; `None` for none. It may be gone when it is needed.
pub(crate) fn find(choice: &BrokerChoice) -> Option<Broker> {
    let path = match choice {
        BrokerChoice::Off => return None,
        BrokerChoice::At(path) => path.clone(),
        BrokerChoice::Auto if may_register() => return None,
        BrokerChoice::Auto => usual()?,
    };
    let client = Client::new(&path);
    Some(Broker { client, registered: AtomicU64::new(0), refused: AtomicU64::new(0) })
}

/// Whether this process may register files itself.
pub(crate) fn may_register() -> bool {
    let own = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let namespace = std::fs::metadata("/proc/self/ns/user").map(|meta| meta.ino());
    own.contains(CapabilitySet::SYS_ADMIN) && namespace.ok() == Some(INITIAL_USER_NAMESPACE)
}

/// The first of the usual places where root listens. Without one, a place where a broker was and
/// may be again; at last one that is not used, so that `status` says why.
fn usual() -> Option<PathBuf> {
    let mut others = Vec::new();
    for place in usual_places().filter(|path| is_socket(path)) {
        match tollgate_broker::look(&place) {
            Ok(()) => return Some(place),
            Err(error) => others.push((matches!(error, RegisterError::NotOfRoot(_)), place)),
        }
    }
    others.into_iter().min_by_key(|(is_anothers, _)| *is_anothers).map(|(_, place)| place)
}

/// Where a user's server looks for one.
pub(crate) fn usual_places() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute());
    let own = own.map(|dir| Path::new(&dir).join("tollgate/broker.sock"));
    own.into_iter().chain([PathBuf::from(DEFAULT_SOCKET)])
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

impl Broker {
    /// For `status`.
    pub(crate) fn report(&self) -> Value {
        json!({
            "socket": self.client.path().to_string_lossy(),
            "trouble": self.client.trouble(),
            "registered": self.registered.load(Ordering::Relaxed),
            "refused": self.refused.load(Ordering::Relaxed),
        })
    }

    fn failed(&self, error: RegisterError) -> io::Error {
        let path = self.client.path().display();
        match error {
            RegisterError::Refused(refusal) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                io::Error::other(format!("the broker at `{path}` refused: {refusal}"))
            }
            RegisterError::Unreachable(error) => {
                io::Error::new(error.kind(), format!("no broker answers at `{path}`: {error}"))
            }
            RegisterError::NotOfRoot(_) => {
                let kind = io::ErrorKind::PermissionDenied;
                io::Error::new(kind, format!("`{path}` is not used as the broker: {error}"))
            }
        }
    }
}

impl Registrar for Broker {
    fn connect(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.client.connect(device).map_err(|error| self.failed(error))
    }

    fn register(&self, device: BorrowedFd<'_>, lower: BorrowedFd<'_>) -> io::Result<u32> {
        let id = self.client.register(device, lower).map_err(|error| self.failed(error))?;
        self.registered.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    fn release(&self, id: u32) {
        self.client.close(id);
    }

    fn end(&self) {
        self.client.end();
    }
}
