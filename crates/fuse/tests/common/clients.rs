//! Clients in processes of their own, which can be killed.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollgate_fuse::Connection;

/// Much longer than anything takes, and shorter than handlers wait in vain.
pub const SOON: Duration = Duration::from_secs(60);

/// Runs this test binary again, in its test `client_process`, as a client that does `what` with
/// `path`.
pub fn client(what: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "client_process", "--nocapture"]);
    command.env("FUSE_TEST_CLIENT", what).env("FUSE_TEST_PATH", path);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// What the test `client_process` does: nothing, unless [`client`] started it.
pub fn run_client() {
    let Ok(what) = std::env::var("FUSE_TEST_CLIENT") else { return };
    let path = std::env::var("FUSE_TEST_PATH").unwrap();
    match what.as_str() {
        "stat" => drop(fs::metadata(path)),
        "sync" => File::open(path).unwrap().sync_all().unwrap(),
        "syncs" => {
            let file = File::open(path).unwrap();
            (0..2_000).for_each(|_| file.sync_all().unwrap());
        }
        "busy" => loop {
            let _ = fs::metadata(format!("{path}/missing"));
        },
        other => panic!("{other}"),
    }
}

pub fn ends_soon(child: &mut Child) {
    until("a client ends", || child.try_wait().unwrap().is_some());
}

/// Waits until `connection` counted more requests than `before`.
pub fn more_requests(connection: &Connection, before: u64) {
    until("requests arrive", || connection.counts().total() > before);
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < SOON, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
