//! A copy of a process that serves (fork) ends nothing of it.
#![expect(unsafe_code, reason = "fork(2)")]

use tollgate_control::{Directory, ask};

#[test]
fn a_copy_that_drops_a_server_and_its_directory_leaves_them() {
    let home = tempfile::tempdir().unwrap();
    let directory = Directory::at(home.path().join("sockets"));
    let nested = directory.nested().unwrap();
    let server =
        Directory::at(nested.path().to_owned()).serve("test", |_, _| "here".into()).unwrap();
    let (path, below) = (server.path().to_owned(), nested.path().to_owned());
    // SAFETY: the copy frees memory and ends, as an allocator that is safe after a fork lets it.
    match unsafe { libc::fork() } {
        0 => {
            let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                drop(server);
                drop(nested);
            }));
            // SAFETY: it only ends the copy.
            unsafe { libc::_exit(i32::from(dropped.is_err())) }
        }
        copy => {
            let copy = rustix::process::Pid::from_raw(copy).expect("fork");
            let ended = rustix::process::waitpid(Some(copy), rustix::process::WaitOptions::empty());
            assert_eq!(ended.unwrap().unwrap().1.exit_status(), Some(0));
            assert_eq!(ask(&path, "who").unwrap(), "here");
            drop((server, nested));
            assert!(!path.exists() && !below.exists());
        }
    }
}
