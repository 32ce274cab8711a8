//! Faults that no transport may turn into a hang or a lost reply. Each test runs over /dev/fuse, and
//! over io_uring where the kernel has that switched on; `TOLLGATE_TEST_TRANSPORT` restricts it to
//! one.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::clients::{SOON, client, ends_soon, more_requests, run_client, until};
use common::{Lower, Served, transports};
use tollgate_fuse::*;

fn config(transport: TransportChoice) -> SessionConfig {
    SessionConfig { transport, threads: 3, ..SessionConfig::default() }
}

fn kill(mut clients: Vec<Child>) {
    clients.iter_mut().for_each(|child| child.kill().unwrap());
    clients.iter_mut().for_each(ends_soon);
}

#[test]
fn client_process() {
    run_client();
}

#[test]
fn a_client_killed_within_a_request_is_gone_at_once() {
    for transport in transports() {
        let served = Served::new(config(transport));
        for name in ["slow", "slow-detached"] {
            let before = served.connection().counts().total();
            let mut child = client("stat", &served.path(name));
            more_requests(served.connection(), before);
            std::thread::sleep(Duration::from_millis(50));
            let start = Instant::now();
            child.kill().unwrap();
            ends_soon(&mut child);
            let took = start.elapsed();
            assert!(took < SOON, "{transport}: {name}: INTERRUPT did not arrive");
        }
        assert!(served.fs.interrupted.load(Ordering::SeqCst), "{transport}");
    }
}

#[test]
fn an_unmount_with_requests_in_flight_ends_the_session_and_its_clients() {
    for transport in transports() {
        let mut served = Served::new(config(transport));
        let clients: Vec<_> = (0..4).map(|_| client("busy", served.at.path())).collect();
        let waits = client("sync", &served.path("direct"));
        until("an fsync arrives", || served.fs.syncing.load(Ordering::SeqCst) > 0);
        more_requests(served.connection(), 1000);
        served.mount.take().unwrap().unmount(true).unwrap();
        served.fs.synced.store(true, Ordering::SeqCst);
        kill(clients);
        kill(vec![waits]);
        let ended = served.running.take().unwrap().wait().unwrap();
        assert_eq!(ended, Ended::Unmounted, "{transport}");
        assert!(served.fs.destroyed.load(Ordering::SeqCst), "{transport}");
    }
}

#[test]
fn a_stop_under_load_lets_no_client_wait() {
    for transport in transports() {
        let mut served = Served::new(config(transport));
        let clients: Vec<_> = (0..3).map(|_| client("busy", served.at.path())).collect();
        more_requests(served.connection(), 1000);
        let running = served.running.take().unwrap();
        running.stop();
        assert_eq!(running.wait().unwrap(), Ended::Stopped, "{transport}");
        kill(clients);
    }
}

/// What a handler finishes before the session ends reaches its caller.
#[test]
fn a_stop_waits_for_a_handler_and_sends_its_reply() {
    for transport in transports() {
        let mut served = Served::new(config(transport));
        let mut waits = client("sync", &served.path("direct"));
        until("an fsync arrives", || served.fs.syncing.load(Ordering::SeqCst) > 0);
        let fs = Arc::clone(&served.fs);
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            fs.synced.store(true, Ordering::SeqCst);
        });
        served.running.take().unwrap().stop();
        release.join().unwrap();
        ends_soon(&mut waits);
        assert!(waits.wait().unwrap().success(), "{transport}: the reply was lost");
    }
}

/// Also where more are finished than a ring takes replies at once.
#[test]
fn a_stop_sends_all_replies_that_are_finished_while_it_waits() {
    for transport in transports() {
        let mut served = Served::new(SessionConfig { threads: 16, ..config(transport) });
        let file = |number| open_lower(&served, &format!("direct-{number}"));
        let files: Vec<_> = (0..12).map(file).collect();
        let syncs: Vec<_> = files.iter().map(|file| on_first_cpu(file, File::sync_all)).collect();
        until("fsyncs arrive", || served.fs.syncing.load(Ordering::SeqCst) == 12);
        let fs = Arc::clone(&served.fs);
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            fs.synced.store(true, Ordering::SeqCst);
        });
        served.running.take().unwrap().stop();
        release.join().unwrap();
        for (number, sync) in syncs.into_iter().enumerate() {
            let result = sync.join().unwrap();
            assert!(result.is_ok(), "{transport}: reply {number} was lost: {result:?}");
        }
    }
}

/// A lock that waits may do so for ever.
#[test]
fn a_stop_does_not_wait_for_a_lock() {
    for transport in transports() {
        let want = InitFlags::SUGGESTED | InitFlags::FLOCK_LOCKS;
        let mut served = Served::new(SessionConfig { want, ..config(transport) });
        let file = open_lower(&served, "direct-lock");
        let waits = on_first_cpu(&file, File::lock);
        let locks = || served.connection().counts().of(abi::opcode::SETLKW);
        until("the lock waits", || locks() == 1);
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        served.running.take().unwrap().stop();
        assert!(waits.join().unwrap().is_err(), "{transport}");
        // After five seconds a stop gives up waiting.
        assert!(start.elapsed() < Duration::from_secs(4), "{transport}: the lock was waited for");
    }
}

/// Writes and reads in requests that are too large for the owner of a ring to serve by itself.
fn moves_data(served: &Served) {
    fs::write(served.lower.path().join("direct-data"), b"").unwrap();
    let path = served.path("direct-data");
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let (data, mut found) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        file.write_all_at(&data, 0).unwrap();
        file.read_exact_at(&mut found, 0).unwrap();
        done.send(data == found).unwrap();
    });
    let found = is_done.recv_timeout(SOON);
    if found.is_err() {
        // Else the mount could not go.
        served.fs.synced.store(true, Ordering::SeqCst);
    }
    assert_eq!(found, Ok(true), "reading and writing had to wait");
}

/// More handlers wait than there are threads for such requests: others are served all the same.
#[test]
fn handlers_that_wait_hold_up_nobody_else() {
    for transport in transports() {
        let served = Served::new(config(transport));
        // Over /dev/fuse one worker fewer than there are; over io_uring more than there are helpers
        // and entries of a CPU's ring.
        let syncs = if transport == TransportChoice::Uring { 12 } else { 2 };
        // Different files: fsyncs of one file wait for each other in the kernel.
        let sync = |number| {
            let name = format!("direct-{number}");
            fs::write(served.lower.path().join(&name), b"").unwrap();
            client("sync", &served.path(&name))
        };
        let mut waiting: Vec<_> = (0..syncs).map(sync).collect();
        until("fsyncs arrive", || served.fs.syncing.load(Ordering::SeqCst) >= 2);
        let before = Instant::now();
        if transport == TransportChoice::Uring {
            moves_data(&served);
        }
        for number in 0..50 {
            assert!(fs::metadata(served.path(&format!("missing-{number}"))).is_err());
        }
        assert!(before.elapsed() < SOON, "{transport}: others had to wait");
        served.fs.synced.store(true, Ordering::SeqCst);
        waiting.iter_mut().for_each(ends_soon);
        for client in &mut waiting {
            assert!(client.wait().unwrap().success(), "{transport}");
        }
        assert_eq!(served.fs.syncing.load(Ordering::SeqCst), syncs, "{transport}");
    }
}

/// Requests of one CPU wait, more than its ring has entries, and arrive all at once: one that comes
/// later is served all the same. With one entry, each of them waits in the kernel at first.
#[test]
fn any_number_of_waiting_requests_holds_up_nobody_else() {
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    for transport in transports() {
        for ring_depth in [1, 4] {
            let served = Served::new(SessionConfig { ring_depth, ..config(transport) });
            let mut first = rustix::thread::CpuSet::new();
            first.set((0..).find(|&cpu| before.is_set(cpu)).unwrap());
            rustix::thread::sched_setaffinity(None, &first).unwrap();
            // Different names: lookups of one name wait for each other in the kernel.
            let path = |i| served.path(&format!("slow-detached-{i}"));
            let clients: Vec<_> = (0..40).map(|i| client("stat", &path(i))).collect();
            let lookups = || served.connection().counts().of(abi::opcode::LOOKUP);
            until("all of them wait", || lookups() >= 40);
            for number in 0..20 {
                let start = Instant::now();
                assert!(fs::metadata(served.path(&format!("missing-{number}"))).is_err());
                let took = start.elapsed();
                assert!(took < SOON, "{transport}, {ring_depth}: had to wait");
            }
            rustix::thread::sched_setaffinity(None, &before).unwrap();
            kill(clients);
            assert_eq!(fs::read(served.path("direct")).unwrap(), b"served");
            assert_eq!(served.connection().counts().undelivered, 0, "{transport}, {ring_depth}");
        }
    }
}

/// A ring that got many spare entries receives more requests at once than its completion queue holds.
/// What they carry is what was sent.
#[test]
fn what_is_written_while_the_owner_of_a_ring_is_busy_arrives_as_it_was_sent() {
    for transport in transports() {
        for round in 0..3 {
            let served = Served::new(config(transport));
            let file = |number| open_lower(&served, &format!("direct-{number}"));
            let files: Vec<_> = (0..100).map(file).collect();
            // Each of them has an entry of its own meanwhile.
            let syncs: Vec<_> =
                files[..60].iter().map(|file| on_first_cpu(file, File::sync_all)).collect();
            until("fsyncs arrive", || served.fs.syncing.load(Ordering::SeqCst) >= 2);
            std::thread::sleep(Duration::from_millis(100));
            served.fs.synced.store(true, Ordering::SeqCst);
            syncs.into_iter().for_each(|sync| sync.join().unwrap().unwrap());

            let meet = Arc::new(served.path("meet"));
            let before = served.connection().counts().total();
            let keeps_busy = on_first_cpu(&meet, |meet| fs::metadata(meet));
            more_requests(served.connection(), before);
            let write = |file: &File| file.write_all_at(&[7; 4096], 0);
            let writes: Vec<_> = files.iter().map(|file| on_first_cpu(file, write)).collect();
            std::thread::sleep(Duration::from_millis(200));
            served.fs.meeting.wait();
            writes.into_iter().for_each(|write| write.join().unwrap().unwrap());
            assert!(keeps_busy.join().unwrap().is_err());
            for number in 0..files.len() {
                let written = fs::read(served.lower.path().join(format!("direct-{number}")));
                assert!(written.unwrap() == [7; 4096], "{transport}, {round}: file {number}");
            }
        }
    }
}

/// Where handlers may hang, those that move data do, too: more of them from one CPU than its ring has
/// entries hold up nobody else.
#[test]
fn reads_that_hang_hold_up_nobody_else() {
    for transport in transports() {
        let spin = Duration::from_micros(20);
        let may_hang = SessionConfig { may_hang: true, reserve: 30, spin, ..config(transport) };
        let served = Served::new(may_hang);
        let read = |file: &File| file.read_at(&mut vec![0; 1 << 20], 0);
        let file = |number| open_lower(&served, &format!("hang-{number}"));
        let files: Vec<_> = (0..8).map(file).collect();
        let reads: Vec<_> = files.iter().map(|file| on_first_cpu(file, read)).collect();
        until("all reads arrive", || served.fs.syncing.load(Ordering::SeqCst) == 8);
        let missing = Arc::new(served.path("missing"));
        let asks = on_first_cpu(&missing, |missing| fs::metadata(missing));
        until("another request is served", || asks.is_finished());
        served.fs.synced.store(true, Ordering::SeqCst);
        for read in reads {
            assert_eq!(read.join().unwrap().unwrap(), 0, "{transport}");
        }
    }
}

/// An empty file, opened through the mount.
fn open_lower(served: &Served, name: &str) -> Arc<File> {
    fs::write(served.lower.path().join(name), b"").unwrap();
    Arc::new(File::options().read(true).write(true).open(served.path(name)).unwrap())
}

/// Has a thread on the first CPU do `what` with `with`.
fn on_first_cpu<T: Send + Sync + 'static, R: Send + 'static>(
    with: &Arc<T>,
    what: impl FnOnce(&T) -> R + Send + 'static,
) -> JoinHandle<R> {
    let with = Arc::clone(with);
    std::thread::spawn(move || {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let mut first = rustix::thread::CpuSet::new();
        first.set((0..).find(|&cpu| allowed.is_set(cpu)).unwrap());
        rustix::thread::sched_setaffinity(None, &first).unwrap();
        what(&with)
    })
}

/// Where handlers wait unexpectedly (for a disk), the next one of them holds up nobody.
#[test]
fn after_slow_handlers_another_one_holds_up_nobody_else() {
    for transport in transports() {
        let served = Served::new(config(transport));
        for number in 0..4 {
            assert!(fs::metadata(served.path(&format!("nap-{number}"))).is_err());
        }
        let before = served.connection().counts().total();
        let waits = client("stat", &served.path("slow"));
        more_requests(served.connection(), before);
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        assert!(fs::metadata(served.path("missing")).is_err());
        assert!(start.elapsed() < SOON, "{transport}: others had to wait");
        kill(vec![waits]);
    }
}

/// The owner of a ring asks for requests without sleeping while helpers finish replies.
#[test]
fn quick_replies_from_other_threads_are_not_lost() {
    for transport in transports() {
        let served = Served::new(config(transport));
        served.fs.synced.store(true, Ordering::SeqCst);
        let mut syncs = client("syncs", &served.path("direct"));
        ends_soon(&mut syncs);
        assert!(syncs.wait().unwrap().success(), "{transport}");
    }
}

#[test]
fn a_thread_that_dies_ends_the_session_with_its_name() {
    for transport in transports() {
        let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let hook = |worker| assert_ne!(worker, 2, "asked for by the test");
        let config = SessionConfig { on_thread_start: Some(Arc::new(hook)), ..config(transport) };
        let mut waiting = client("stat", &at.path().join("x"));
        let error = Session::new(device, Lower::new(lower.path()), config).start().unwrap_err();
        let named = matches!(error, SessionError::Panicked { worker: 2 });
        assert!(named, "{transport}: {error}");
        ends_soon(&mut waiting);
        mount.unmount(true).unwrap();
    }
}

/// Whoever opened the device may have asked that it does not block.
#[test]
fn workers_sleep_on_a_device_that_was_opened_with_o_nonblock() {
    for transport in transports() {
        let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let flags = rustix::fs::fcntl_getfl(&device).unwrap() | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&device, flags).unwrap();
        let workers = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&workers);
        let note = move |_| noted.lock().unwrap().push(rustix::thread::gettid());
        let config = SessionConfig { on_thread_start: Some(Arc::new(note)), ..config(transport) };
        let running = Session::new(device, Lower::new(lower.path()), config).start().unwrap();
        assert!(fs::metadata(at.path().join("missing")).is_err());
        let sleeps = |tid: &rustix::thread::Pid| {
            let status = fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
            status.contains("State:\tS")
        };
        let mut in_a_row = 0;
        until("all workers sleep whenever they are looked at", || {
            let all_sleep = workers.lock().unwrap().iter().all(sleeps);
            in_a_row = if all_sleep { in_a_row + 1 } else { 0 };
            in_a_row == 100
        });
        running.stop();
        assert_eq!(running.wait().unwrap(), Ended::Stopped, "{transport}");
    }
}
