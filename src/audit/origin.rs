//! Which run a record belongs to: the records of start and end, and the id that every record has.

use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::slot::timestamp;
use crate::escape::json_text;
use crate::presets::Preset;

/// A server, from its start to its end.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Sixteen hexadecimal digits, drawn anew at each start.
    pub(crate) run: String,
    /// `run` or `mount`.
    pub(crate) kind: &'static str,
    pub(crate) dir: String,
    pub(crate) mount_point: String,
    pub(crate) policy: Option<String>,
    /// SHA-256 of the policy's file.
    pub(crate) policy_sha256: Option<String>,
}

impl Origin {
    /// A run that starts now.
    pub(crate) fn new(
        kind: &'static str,
        dir: &Path,
        mount_point: &Path,
        policy: Option<&Path>,
    ) -> Self {
        Self {
            run: random_id(),
            kind,
            dir: dir.to_string_lossy().into_owned(),
            mount_point: mount_point.to_string_lossy().into_owned(),
            policy: policy.map(|file| file.to_string_lossy().into_owned()),
            policy_sha256: policy.and_then(|file| digest_of(file, dir)),
        }
    }

    /// A line about the whole run: `start`, `continued` at the head of the next file, `reload`,
    /// `stop`.
    pub(super) fn line(&self, event: &str, more: Value) -> Vec<u8> {
        let mut line = json!({
            "time": timestamp(SystemTime::now()),
            "event": event,
            "run": self.run,
            "kind": self.kind,
            "server": std::process::id(),
            "dir": self.dir,
            "mount_point": self.mount_point,
            "policy": self.policy,
            "policy_sha256": self.policy_sha256,
        });
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        (json_text(&line.to_string()).into_owned() + "\n").into_bytes()
    }
}

/// As `sha256sum` shows it; `None` if the file cannot be read. Of a preset, as fitted to `dir`.
pub(crate) fn digest_of(file: &Path, dir: &Path) -> Option<String> {
    let preset = file.to_str().and_then(|name| name.strip_prefix("preset:"));
    let text = match preset.and_then(Preset::named) {
        Some(preset) => preset.fitted_text(dir).into_bytes(),
        // A confined server asks the process beside it.
        None => crate::files::read(file).ok()?,
    };
    Some(Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn random_id() -> String {
    let mut bytes = [0; 8];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if read.is_err() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mixed = now.as_nanos() ^ (u128::from(std::process::id()) << 64);
        bytes.copy_from_slice(&mixed.to_le_bytes()[..8]);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
