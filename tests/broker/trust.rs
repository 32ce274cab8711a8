//! A server hands its descriptors to a broker of root, and to nobody else who listens where one may.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::harness::{Broker, Home, USER, count, with_open_device, with_own_run};

/// Neither root nor [`USER`].
const OTHER: u32 = 4321;

/// A socket of sequential packets at which `user` listens, and accepts nobody until it is asked.
struct Pretender(OwnedFd);

impl Pretender {
    fn listen(path: &Path, user: u32) -> Self {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        let listen = || {
            let (gid, uid) = (Gid::from_raw(user), Uid::from_raw(user));
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            rustix::net::bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
            rustix::net::listen(&fd, 64).unwrap();
            fd
        };
        // Ids are each thread's own, and this one ends with them.
        let fd = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
        rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).unwrap();
        Self(fd)
    }

    /// The bytes of all that connected, and how many those were.
    fn was_sent(&self) -> (usize, usize) {
        let (mut connected, mut sent) = (0, 0);
        loop {
            let one = match rustix::net::accept(&self.0) {
                Err(Errno::AGAIN) => return (connected, sent),
                one => one.unwrap(),
            };
            connected += 1;
            let mut bytes = [0; 64];
            while let Ok((len @ 1.., _)) =
                rustix::net::recv(&one, &mut bytes[..], RecvFlags::DONTWAIT)
            {
                sent += len;
            }
        }
    }
}

/// `run/tollgate/broker.sock` in the home, where the user's server looks first.
fn own_place(home: &Home) -> PathBuf {
    let directory = home.at("run/tollgate");
    fs::create_dir(&directory).unwrap();
    // The pretender puts its socket there; the user's own directory is private afterwards.
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
    directory.join("broker.sock")
}

fn give_back(place: &Path) {
    let directory = place.parent().unwrap();
    chown(directory, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_broker_of_another_user_is_sent_nothing() {
    with_open_device(|| {
        // The user's own process is none either: it could be one of CMD's, from whom the policy
        // keeps files that the server has open.
        for user in [OTHER, USER] {
            let home = Home::new();
            home.write("a", b"served", 0o644);
            let place = own_place(&home);
            let pretender = Pretender::listen(&place, user);
            give_back(&place);
            let why = format!("a process of user {user} listens there, and only root's can be");
            let named = ["--broker", place.to_str().unwrap()];
            for options in [&[][..], &named] {
                let run = home.start(options, "exec 3<>a; cat <&3; cat");
                let report = run.report(|report| count(report, "open_fallback") >= 1);
                assert!(report["broker"]["trouble"].as_str().unwrap().contains(&why), "{report}");
                assert!(run.status().contains(&why), "{}", run.status());
                let output = run.finish();
                assert_eq!(output.stdout, b"served");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(
                    said.contains("is not used as the broker") && said.contains(&why),
                    "{said}"
                );
            }
            let doctor = home.tollgate().arg("doctor").output().unwrap();
            let told =
                String::from_utf8_lossy(&doctor.stdout).replace(|c: char| c.is_whitespace(), " ");
            let told =
                told.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
            assert!(told.contains(&format!("is not used ({why}")), "{told}");
            let (connected, sent) = pretender.was_sent();
            assert!(connected >= 3 && sent == 0, "{connected} connections, {sent} bytes");
        }
    });
}

/// The first place has been put there by somebody else: `su` leaves `XDG_RUNTIME_DIR` as it was.
#[test]
fn a_broker_of_root_is_found_behind_one_that_is_not() {
    with_own_run(|| {
        let home = Home::new();
        home.write("a", b"served", 0o644);
        let place = own_place(&home);
        let pretender = Pretender::listen(&place, OTHER);
        give_back(&place);
        let broker = Broker::start(Path::new("/run/tollgate"), &[]);
        let run = home.start(&[], "exec 3<>a; cat <&3; cat");
        let report = run.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(report["broker"]["socket"], broker.socket.to_str().unwrap(), "{report}");
        assert_eq!(run.finish().stdout, b"served");
        assert_eq!(pretender.was_sent().1, 0);
        let doctor = home.tollgate().arg("doctor").output().unwrap();
        let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(told.contains("listens at `/run/tollgate/broker.sock`; `"), "{told}");
    });
}
