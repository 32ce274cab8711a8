//! `tollgate mount` by a user without privilege, through the set-user-id helper `fusermount3`.
//! Without the helper (package fuse3) these tests say so and pass.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use crate::harness::{as_user, can_mount};

/// `nobody`: the helper insists on a user with a name.
const USER: u32 = 65534;
const STRANGER: u32 = 4322;
const POLICY: &str = "[[rule]]\nname = 'env'\npath = '**/.env'\naction = 'hide'\n";
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether users may mount here. `false` after saying why not.
fn users_can_mount() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("fusermount3"));
    let helper = found.filter_map(|file| Some((fs::metadata(&file).ok()?, file))).next();
    match helper {
        None => println!("skipped: no fusermount3 in PATH (package fuse3)"),
        Some((meta, file)) if meta.uid() != 0 || meta.mode() & 0o4001 != 0o4001 => {
            println!("skipped: {} does not run as root for everybody", file.display());
        }
        Some(_) => return true,
    }
    false
}

/// Runs `test` where everybody may open /dev/fuse, if users can mount at all: the helper opens it as
/// its user.
fn with_open_device(test: impl FnOnce() + Send) {
    if can_mount() && users_can_mount() {
        crate::device::with_open_device(test);
    }
}

/// A tree and a mount point of the user, and the program where the user can reach it.
struct Home {
    base: TempDir,
}

impl Home {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let home = Self { base };
        fs::set_permissions(home.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // By another process: what is open here to be written, a child that another test forks
        // at this moment holds too, and nobody can execute it then.
        let mut copy = std::process::Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_tollgate")).arg(home.at("tollgate"));
        assert!(copy.status().unwrap().success());
        for name in ["lower", "mnt", "run"] {
            fs::create_dir(home.at(name)).unwrap();
        }
        fs::write(home.at("lower/a.txt"), "plain\n").unwrap();
        fs::write(home.at("lower/.env"), "secret\n").unwrap();
        fs::write(home.at("policy.toml"), POLICY).unwrap();
        for name in ["lower", "lower/a.txt", "lower/.env", "mnt", "run"] {
            chown(home.at(name), Some(USER), Some(USER)).unwrap();
        }
        home
    }

    fn at(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn tollgate(&self, uid: u32) -> Command {
        let mut command = Command::new(self.at("tollgate"));
        command.uid(uid).gid(uid).env("XDG_RUNTIME_DIR", self.at("run")).current_dir("/");
        command.stdin(Stdio::null());
        command
    }

    fn mount(&self) -> Command {
        let mut command = self.tollgate(USER);
        command.args(["mount", "--policy"]).arg(self.at("policy.toml"));
        command.arg(self.at("lower")).arg(self.at("mnt"));
        command
    }

    fn umount(&self, uid: u32) -> Output {
        self.tollgate(uid).arg("umount").arg(self.at("mnt")).output().unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Gone already, if the test went well.
        let _ = rustix::mount::unmount(self.at("mnt"), UnmountFlags::DETACH);
    }
}

/// Starts the server and waits until it is ready; what it said until then.
fn start(command: &mut Command) -> (Child, String) {
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("ready: ") {
        let more = said.read_line(&mut text).unwrap();
        assert!(more > 0, "the server ended with {}: {text}", server.wait().unwrap());
    }
    // It may say more than the pipe holds.
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    (server, text)
}

fn wait(mut server: Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = server.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    panic!("the server did not end");
}

fn denied(path: &Path) -> bool {
    matches!(fs::read(path), Err(error) if error.kind() == ErrorKind::PermissionDenied)
}

#[test]
fn a_user_mounts_and_unmounts_through_the_helper() {
    with_open_device(|| {
        let home = Home::new();
        let (server, said) = start(&mut home.mount());
        assert!(said.contains("not available: passthrough"), "{said}");
        let (file, hidden, new) = (home.at("mnt/a.txt"), home.at("mnt/.env"), home.at("mnt/new"));
        as_user(USER, USER, || {
            assert_eq!(fs::read_to_string(&file).unwrap(), "plain\n");
            assert_eq!(fs::read(&hidden).unwrap_err().kind(), ErrorKind::NotFound);
            fs::write(&new, "new\n").unwrap();
        });
        let made = fs::metadata(home.at("lower/new")).unwrap();
        assert_eq!((made.uid(), made.len()), (USER, 4));
        // A view that a user mounted is for that user: not even root looks into it.
        assert!(denied(&file) && as_user(STRANGER, STRANGER, || denied(&file)));
        let refused = home.umount(STRANGER);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{said}");
        assert!(
            said.contains(&format!("is the view of user {USER}, who may unmount it")),
            "{said}"
        );
        assert_eq!(as_user(USER, USER, || fs::read(&file)).unwrap(), b"plain\n");
        let output = home.umount(USER);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(wait(server));
        assert_eq!(fs::read_dir(home.at("mnt")).unwrap().count(), 0);
    });
}

#[test]
fn what_the_helper_refuses_is_passed_on_in_its_words() {
    with_open_device(|| {
        let home = Home::new();
        chown(home.at("mnt"), Some(STRANGER), Some(STRANGER)).unwrap();
        let output = home.mount().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("fusermount3") && said.contains("no write access"), "{said}");
    });
}

/// What a dead server left, its user can take away.
#[test]
fn a_user_cleans_up_after_a_dead_server() {
    with_open_device(|| {
        let home = Home::new();
        let (mut server, _) = start(&mut home.mount());
        server.kill().unwrap();
        server.wait().unwrap();
        let output = home.umount(USER);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_dir(home.at("mnt")).unwrap().count(), 0);
    });
}
