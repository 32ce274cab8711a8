//! A directory with a keyring, commands on it, and what they say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use tempfile::TempDir;

/// A directory with a keyring that a key file and a passphrase open, and files below `vault`.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) keys: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap(), keys: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("vault")).unwrap();
        fs::write(place.path("vault/plan"), b"the plan ".repeat(3000)).unwrap();
        fs::write(place.path("vault/empty"), b"").unwrap();
        let dir = place.dir.path().to_str().unwrap();
        ok(&place.bare(&["init", "--new-key-file", &place.key(), dir]));
        place
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(crate) fn key(&self) -> String {
        self.keys.path().join("key").to_str().unwrap().to_owned()
    }

    /// A file for a passphrase.
    pub(crate) fn word(&self, name: &str, text: &str) -> String {
        let path = self.keys.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn bare(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        for name in ["TOLLGATE_SEAL_KEY_FILE", "TOLLGATE_SEAL_PASSPHRASE_FILE"] {
            command.env_remove(name);
        }
        command.env_remove("CREDENTIALS_DIRECTORY").current_dir(self.dir.path());
        command.arg("seal").args(arguments);
        command
    }

    pub(crate) fn seal(&self, arguments: &[&str]) -> Output {
        self.bare(&[arguments, &["--key-file", &self.key()]].concat())
    }

    pub(crate) fn vault(&self, command: &str, arguments: &[&str]) -> Output {
        let domain = ["--domain", "vault", "vault"];
        self.seal(&[&[command][..], &domain, arguments].concat())
    }

    /// What a kill leaves beside the files, where the keyring is on another mount: the path.
    pub(crate) fn left_behind(&self, random: &str, content: &[u8]) -> PathBuf {
        let path = self.path("vault/half");
        fs::write(&path, content).unwrap();
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).unwrap();
        let born = found.stx_btime.tv_sec * 1_000_000_000 + i64::from(found.stx_btime.tv_nsec);
        let named = format!("vault/.tollgate-sealing-{random}-{:x}-{born:x}", found.stx_ino);
        fs::rename(path, self.path(&named)).unwrap();
        self.path(&named)
    }

    pub(crate) fn exported(&self) -> Vec<u8> {
        let to = tempfile::tempdir().unwrap();
        ok(&self.vault("export", &["--to", to.path().to_str().unwrap()]));
        fs::read(to.path().join("plan")).unwrap()
    }
}

pub(crate) fn ok(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Fails with status 1, and says all of `texts`.
pub(crate) fn fails(output: &Output, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(texts.iter().all(|text| said.contains(text)), "{texts:?} in {said}");
}

/// Something is mounted there as long as it lives.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mounted {
    pub(crate) fn new(at: PathBuf, what: &[&str]) -> Mounted {
        fs::create_dir_all(&at).unwrap();
        let said = Command::new("mount").args(what).arg(&at).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
