//! What a mount is to be like.

use rustix::mount::MountFlags;

use super::error::MountError;

/// Type of mounts made here, as `/proc/mounts` shows it, without a chosen subtype.
pub(super) const DEFAULT_SUBTYPE: &str = "tollgate";

/// mount(2) takes a page for each of its strings.
const MAX_SOURCE_BYTES: usize = 4095;
const MAX_SUBTYPE_BYTES: usize = 255;

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// First column of `/proc/mounts`; the path of what is served, or a name. At most 4,095 bytes,
    /// without NUL and newline.
    pub source: String,
    /// `/proc/mounts` shows `fuse.SUBTYPE`. Letters, digits, `-` and `_`, at most 255.
    pub subtype: String,
    /// Users other than the one who mounts may use the file system.
    pub allow_other: bool,
    /// The kernel checks permissions by owner and mode. Without it and with `allow_other`, one
    /// user's permission could be reused for another: leave it on.
    pub default_permissions: bool,
    /// Read-only.
    pub read_only: bool,
    /// Set-id bits have no effect. `fusermount3` insists on it.
    pub nosuid: bool,
    /// Device files cannot be opened. `fusermount3` insists on it.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// No access times.
    pub noatime: bool,
    /// Largest READ in bytes; 0 leaves it to the kernel (`max_pages`).
    pub max_read: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: DEFAULT_SUBTYPE.into(),
            subtype: DEFAULT_SUBTYPE.into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            noatime: false,
            max_read: 0,
        }
    }
}

impl MountOptions {
    pub(super) fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NOATIME, self.noatime);
        flags
    }

    /// Options that the FUSE file system itself takes. All values are numbers: nothing to escape.
    pub(super) fn kernel_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.default_permissions {
            options.push("default_permissions".into());
        }
        if self.allow_other {
            options.push("allow_other".into());
        }
        if self.max_read > 0 {
            options.push(format!("max_read={}", self.max_read));
        }
        options
    }

    pub(super) fn check(&self) -> Result<(), MountError> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_word = self.subtype.chars().all(word);
        if !is_word || self.subtype.is_empty() || self.subtype.len() > MAX_SUBTYPE_BYTES {
            return Err(MountError::Option {
                option: "subtype",
                value: self.subtype.clone(),
                allowed: "1 to 255 letters, digits, '-' and '_'",
            });
        }
        let fits = (1..=MAX_SOURCE_BYTES).contains(&self.source.len());
        if !fits || self.source.contains(['\0', '\n']) {
            return Err(MountError::Option {
                option: "source",
                value: self.source.clone(),
                allowed: "a path or name of 1 to 4095 bytes without NUL and newline",
            });
        }
        Ok(())
    }
}
