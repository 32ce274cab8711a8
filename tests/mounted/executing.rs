//! A process that executes a program closes its files in the middle of that, while the kernel lets
//! nobody read what /proc tells of it. The server must answer without.

use std::fs::{self, File};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::harness::{View, can_mount};

const FILES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(30);

/// Children that inherit many open files execute a program, again and again.
#[test]
fn files_that_close_at_execve_do_not_stop_it() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        let open = |n: usize| {
            let path = view.at(&n.to_string());
            fs::write(&path, "text").unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        };
        let _files: Vec<_> = (0..FILES).map(open).collect();
        let (done, ended) = channel();
        std::thread::spawn(move || {
            for _ in 0..20 {
                let status = Command::new("/bin/true").status().unwrap();
                if done.send(status.success()).is_err() {
                    return;
                }
            }
        });
        for _ in 0..20 {
            let outcome = ended.recv_timeout(PATIENCE);
            if outcome != Ok(true) {
                // Who waits for the server waits no longer.
                view.kill_server();
            }
            assert_eq!(outcome, Ok(true), "a process hangs in execve");
        }
        assert!(view.status("descriptors_max") > 0);
    }
}
