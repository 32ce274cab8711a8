//! CMD at its terminal, and the other terminals of its user.

#![expect(unsafe_code, reason = "openpty has no safe wrapper")]

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;

use crate::project::{Project, all, can_mount, text};

/// A terminal, with both its ends.
struct Terminal {
    _master: File,
    slave: OwnedFd,
}

impl Terminal {
    fn new() -> Self {
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: the two numbers are written to; name, modes and size may be null.
        let made = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, none, std::ptr::null(), std::ptr::null())
        };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call succeeded, and nobody else has these descriptors.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        Self { _master: master, slave }
    }

    fn path(&self) -> PathBuf {
        rustix::termios::ttyname(&self.slave, Vec::new()).unwrap().into_string().unwrap().into()
    }
}

/// The nodes of all terminals of a user belong to that user. What is typed at another one would be
/// read, passwords included, and what is written there shown.
#[test]
fn other_terminals_of_its_user_are_out_of_reach() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let (own, other) = (Terminal::new(), Terminal::new());
    let inside = "
        BESIDE=$PWD/../beside/${OTHER##*/}; [ -c $BESIDE ] && echo is there
        true <$BESIDE && echo read by another path; true >$BESIDE && echo wrote by another path
        tty; stty -g >/dev/null && echo has modes; echo shown >/dev/tty && echo written
        true <$OTHER && echo read the other; true >$OTHER && echo wrote to the other
        for node in /dev/* /dev/pts/*; do [ -c $node ] && [ -O $node ] && [ ! -L $node ] && echo $node; done
        echo x >/dev/shm/x && cat /dev/shm/x; ls -A /dev/shm; chmod 600 /dev/null || echo kept";
    let script = format!(
        "cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir; chown 4321 {own} {other}
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        mkdir -p beside; mount --bind /dev/pts beside
        as='setpriv --reuid 4321 --regid 4321 --clear-groups'
        export OTHER={other}; $as sh -c 'true <$OTHER && true >$OTHER && echo outside it opens'
        exec setsid --ctty --wait $as ./tollgate run --quiet --policy policy.toml dir -- \\
            sh -c '{inside}' <{own}",
        own = own.path().display(),
        other = other.path().display(),
    );
    let output = project.in_mount_namespace(&script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(
        text(&output.stdout),
        "outside it opens\nis there\n/dev/console\nhas modes\nwritten\n\
         /dev/console\n/dev/pts/ptmx\nx\nx\nkept\n",
        "{all}"
    );
}
