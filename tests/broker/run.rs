//! `run` of a user without privilege, who has a broker.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Broker, Home, USER, count, until, with_open_device};

/// The options of a `run` that uses `broker`, and passthrough for every file.
fn by(broker: &Broker) -> [String; 4] {
    let socket = broker.socket.to_str().unwrap().to_owned();
    ["--broker".into(), socket, "--small-files".into(), "passthrough".into()]
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[test]
fn the_kernel_reads_and_writes_files_of_a_user() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", &[b'a'; 200_000], 0o644);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let script = "exec 3<>a; head -c 100000 <&3 | wc -c; echo end >&3; echo new >b; cat b; cat";
        let options = by(&broker);
        let run = home.start(&words(&options), script);
        let report = run.report(|report| count(report, "open_passthrough") >= 3);
        assert_eq!((count(&report, "read"), count(&report, "write")), (0, 0), "{report}");
        assert_eq!(count(&report, "open_fallback"), 0, "{report}");
        assert_eq!(report["view"]["passthrough"], true);
        let text = run.status();
        assert!(text.contains("registers files for passthrough; registered 2"), "{text}");
        let output = run.finish();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "100000\nnew\n");
        let below = fs::read(home.below("a")).unwrap();
        assert!(below.windows(4).any(|four| four == b"end\n"));
        let made = fs::metadata(home.below("b")).unwrap();
        assert_eq!((made.uid(), made.len()), (USER, 4));
        assert_eq!(broker.said().lines().count(), 1, "{}", broker.said());
    });
}

#[test]
fn a_file_that_the_user_may_only_read_is_served_by_tollgate_and_counted() {
    with_open_device(|| {
        let home = Home::new();
        home.write("of-root", b"look\n", 0o644);
        chown(home.below("of-root"), Some(0), Some(0)).unwrap();
        home.write("own", b"own\n", 0o444);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let options = by(&broker);
        let script = "cat of-root own; echo x 2>&1 >of-root; umask 333; echo made >made; cat";
        let run = home.start(&words(&options), script);
        let report = run.report(|report| count(report, "open_passthrough") >= 1);
        // A file made without permission to write is registered by its maker's descriptor.
        assert_eq!(count(&report, "open_only_read"), 2, "{report}");
        assert!(run.status().contains("may only read, served by tollgate: 2"), "{}", run.status());
        let output = run.finish();
        assert!(output.stdout.starts_with(b"look\nown\n"), "{output:?}");
        assert_eq!(fs::read(home.below("of-root")).unwrap(), b"look\n");
        assert_eq!(fs::read(home.below("made")).unwrap(), b"made\n");
        assert_eq!(fs::metadata(home.below("made")).unwrap().mode() & 0o777, 0o444);
    });
}

#[test]
fn without_a_broker_it_works_and_says_what_would_help() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"served\n", 0o644);
        for broker in ["off", "/nowhere/broker.sock"] {
            let output = home.start(&["--broker", broker], "cat a").finish();
            assert_eq!(output.stdout, b"served\n");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let expected = match broker {
                "off" => "systemctl enable --now tollgate-broker.socket",
                _ => "no broker answers at `/nowhere/broker.sock`",
            };
            assert!(said.contains(expected), "{said}");
        }
    });
}

#[test]
fn a_broker_that_dies_is_done_without_and_one_that_is_back_is_used() {
    with_open_device(|| {
        let home = Home::new();
        for name in ["a", "b", "c"] {
            home.write(name, name.as_bytes(), 0o644);
        }
        let mut broker = Broker::start(home.at("").as_path(), &[]);
        let options = by(&broker);
        let script = "exec 3<a; read go; cat b; cat <&3; read go; cat c; read go";
        let mut run = home.start(&words(&options), script);
        run.report(|report| count(report, "open_passthrough") >= 1);
        broker.kill();
        run.say("go");
        let report = run.report(|report| count(report, "open_fallback") >= 1);
        assert!(report["broker"]["trouble"].is_string(), "{report}");
        let text = run.status();
        assert!(text.contains("files opened now are served by tollgate"), "{text}");
        drop(broker);
        let broker = Broker::start(home.at("").as_path(), &[]);
        // It is not called again at once.
        std::thread::sleep(std::time::Duration::from_millis(600));
        run.say("go");
        let report = run.report(|report| count(report, "open_passthrough") >= 2);
        assert_eq!(report["broker"]["trouble"], serde_json::Value::Null, "{report}");
        run.say("go");
        assert_eq!(run.finish().stdout, b"bac");
        assert_eq!(broker.said().lines().count(), 1, "{}", broker.said());
    });
}

#[test]
fn files_that_are_open_go_on_after_a_reply_of_the_broker_that_came_late() {
    with_open_device(|| {
        let home = Home::new();
        for name in ["a", "b", "c"] {
            home.write(name, name.as_bytes(), 0o644);
        }
        let broker = Broker::start(home.at("").as_path(), &[]);
        let options = by(&broker);
        let script = "exec 3<>a; read go; exec 4<>b; cat <&4; read go; cat <&3; cat a; while read go; do : 5<>c; done";
        let mut run = home.start(&words(&options), script);
        run.report(|report| count(report, "open_passthrough") >= 1);
        let children = broker.children();
        let child = Pid::from_raw(children[0].cast_signed()).unwrap();
        assert_eq!(children.len(), 1);
        kill_process(child, Signal::STOP).unwrap();
        run.say("go");
        let report = run.report(|report| count(report, "open_fallback") >= 1);
        assert!(report["broker"]["trouble"].is_string(), "{report}");
        kill_process(child, Signal::CONT).unwrap();
        run.say("go");
        // It is not called again at once.
        until("the broker is not asked again", || {
            run.say("go");
            run.report(|_| true)["broker"]["trouble"].is_null()
        });
        let output = run.finish();
        assert_eq!(output.stdout, b"baa", "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn a_socket_that_systemd_hands_over_is_served() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"served", 0o644);
        let socket = home.at("handed-over.sock");
        let broker = Broker::start_with(tollgate_broker::listener(&socket).unwrap(), &socket);
        let run = home.start(&["--broker", socket.to_str().unwrap()], "exec 3<>a; cat <&3; cat");
        run.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(run.finish().stdout, b"served");
        let open = broker.open_files();
        assert!(!open.iter().any(|file| file.ends_with("tollgate")), "{open:?}");
    });
}

/// Where nothing is watched, what changes in DIR shows when the kernel asks again.
#[test]
fn changes_made_directly_in_dir_are_seen_within_the_second() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"old\n", 0o644);
        home.write("sub/kept", b"kept\n", 0o644);
        let ask = "cat a; ls sub; stat -c %a sub/kept; cat sub/new";
        let script = format!("({ask}) 2>&1; echo looked >looked; read go; ({ask}) 2>&1; read go");
        let mut run = home.start(&["--broker", "off", "--watch", "off"], &script);
        until("it looked", || home.below("looked").exists());
        change(&home);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        run.say("go");
        run.report(|report| report["view"]["watch"]["on"] == false);
        run.say("go");
        let output = run.finish();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let gone = "cat: sub/new: No such file or directory";
        let expected = format!("old\nkept\n644\n{gone}\nchanged\nkept\nnew\n600\nnew\n");
        assert_eq!(told, expected, "{output:?}");
    });
}

fn change(home: &Home) {
    home.write("a", b"changed\n", 0o644);
    home.write("sub/new", b"new\n", 0o644);
    fs::set_permissions(home.below("sub/kept"), PermissionsExt::from_mode(0o600)).unwrap();
}

/// The kernel reports changes to a user, too. What it caches for a minute here shows at once.
#[test]
fn changes_made_directly_in_dir_are_reported_to_a_user() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"old\n", 0o644);
        home.write("sub/kept", b"kept\n", 0o644);
        home.write("signs/none", b"", 0o644);
        let look = "(cat a; ls sub; stat -c %a sub/kept; cat sub/new) 2>&1";
        // Once more: what the kernel comes back to is watched from then on.
        let script = format!(
            "read go; ({look}; {look}) >&2; {look}; echo >signs/looked; read go; {look}; read go"
        );
        let options = ["--broker", "off", "--watch", "on", "--attr-timeout", "60"];
        let mut run = home.start(&options, &script);
        // `run` watches nothing for its first 0.2 s.
        std::thread::sleep(std::time::Duration::from_millis(500));
        run.say("go");
        until("it looked", || home.below("signs/looked").exists());
        run.report(|report| report["view"]["watch"]["directories"].as_u64() >= Some(2));
        change(&home);
        // Of `a` the write, of `sub` a name, of `sub/kept` its mode.
        run.report(|report| report["view"]["watch"]["changes"].as_u64() >= Some(3));
        std::thread::sleep(std::time::Duration::from_millis(300));
        let report = run.report(|_| true);
        run.say("go");
        // No mark on the file system, but one on each file.
        assert_eq!(report["view"]["watch"]["files"], true, "{report}");
        run.say("go");
        let output = run.finish();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let gone = "cat: sub/new: No such file or directory";
        let expected = format!("old\nkept\n644\n{gone}\nchanged\nkept\nnew\n600\nnew\n");
        assert_eq!(told, expected, "{output:?}");
    });
}

/// Without passthrough no attributes of files are believed for longer than their timeout, although
/// the directory is watched.
#[test]
fn a_file_that_changes_by_a_name_elsewhere_is_seen_within_the_second() {
    with_open_device(|| {
        let home = Home::new();
        home.write("sub/file", b"file\n", 0o644);
        let look = "stat -c %a sub/file; ls sub";
        let script = format!("read go; {look}; {look}; : >looked; read go; {look}; read go");
        let mut run = home.start(&["--broker", "off"], &script);
        std::thread::sleep(std::time::Duration::from_millis(500));
        run.say("go");
        until("it looked", || home.below("looked").exists());
        run.report(|report| report["view"]["watch"]["directories"].as_u64() >= Some(1));
        fs::hard_link(home.below("sub/file"), home.at("elsewhere")).unwrap();
        fs::set_permissions(home.at("elsewhere"), PermissionsExt::from_mode(0o600)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        run.say("go");
        run.say("go");
        let output = run.finish();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(told, "644\nfile\n644\nfile\n600\nfile\n", "{output:?}");
    });
}

/// A registration costs a round trip, so more of them outlive the last handle than root's 256.
#[test]
fn many_files_that_are_opened_again_are_registered_once() {
    with_open_device(|| {
        let home = Home::new();
        for number in 0..400 {
            home.write(&format!("f{number}"), b"x", 0o644);
        }
        let broker = Broker::start(home.at("").as_path(), &[]);
        let mut options = words(&by(&broker)).join(" ");
        options.push_str(" --threads 1");
        let options: Vec<_> = options.split(' ').collect();
        let script = "for f in f*; do : <>$f; done; for f in f*; do : <>$f; done; cat";
        let run = home.start(&options, script);
        let report = run.report(|report| count(report, "open_passthrough") >= 800);
        let registered = report["broker"]["registered"].as_u64().unwrap();
        assert!(registered < 600, "{registered} registrations of 400 files");
        assert!(run.finish().status.success());
    });
}

/// Longer than root's, which cost nobody a round trip.
#[test]
fn a_file_that_is_opened_again_some_seconds_later_is_still_registered() {
    with_open_device(|| {
        let home = Home::new();
        home.write("f", b"x", 0o644);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let mut run = home.start(&words(&by(&broker)), "while read go; do : <>f; done");
        let mut open = |number: u64| {
            run.say("go");
            let report = run.report(|report| count(report, "open_passthrough") >= number);
            report["broker"]["registered"].as_u64().unwrap()
        };
        // A busy machine may take longer than a registration is kept: then it is tried again.
        let mut registered = vec![open(1)];
        while registered.len() < 10 {
            std::thread::sleep(std::time::Duration::from_secs(3));
            registered.push(open(registered.len() as u64 + 1));
            if registered[registered.len() - 2..].iter().min() == registered.iter().max() {
                break;
            }
        }
        assert!(registered.len() < 10, "{registered:?} registrations after each open");
        assert!(run.finish().status.success());
    });
}

#[test]
fn the_broker_is_found_where_the_user_may_put_one() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"served", 0o644);
        fs::create_dir(home.at("run/tollgate")).unwrap();
        chown(home.at("run/tollgate"), Some(USER), Some(USER)).unwrap();
        let permissions = PermissionsExt::from_mode(0o700);
        fs::set_permissions(home.at("run/tollgate"), permissions).unwrap();
        let _broker = Broker::start(&home.at("run/tollgate"), &[]);
        let run = home.start(&[], "exec 3<>a; cat <&3; cat");
        run.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(run.finish().stdout, b"served");
    });
}

#[test]
fn a_broker_without_privilege_leaves_nothing() {
    with_open_device(|| {
        let home = Home::new();
        let socket = home.at("run/bs");
        let output = home.tollgate().arg("broker").arg("--socket").arg(&socket).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("started as root"), "{said}");
        assert!(!socket.exists());
    });
}
