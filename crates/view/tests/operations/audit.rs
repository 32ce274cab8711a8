//! What the audit log is told.

use std::sync::{Arc, Mutex};

use libc::{O_RDONLY, O_RDWR};
use rustix::io::Errno;
use tollgate_fuse::InitFlags;
use tollgate_view::{Audit, AuditLevel, Config, Detail, Event, Outcome};

use crate::kernel::Played;

const POLICY: &str = "
[[rule]]
name = 'keys'
path = '**/*.pem'
action = 'deny'
[[rule]]
path = 'watched'
action = 'userspace'
";

/// Operation, outcome, path, rule, bytes.
type Told = (&'static str, Outcome, String, Option<String>, Option<u64>);

/// Keeps what it is told.
struct Log {
    level: AuditLevel,
    events: Mutex<Vec<Told>>,
}

impl Audit for Log {
    fn level(&self) -> AuditLevel {
        self.level
    }

    fn record(&self, event: &Event<'_>) {
        assert_eq!(event.uid, rustix::process::geteuid().as_raw());
        assert!(event.exe.is_some_and(|exe| exe.ends_with(own_name().as_bytes())));
        let path = String::from_utf8(event.path.to_vec()).unwrap();
        let rule = event.rule.map(str::to_owned);
        let bytes = match event.detail {
            Detail::Span { bytes, .. } => Some(bytes),
            _ => None,
        };
        let entry = (event.operation, event.outcome, path, rule, bytes);
        self.events.lock().unwrap().push(entry);
    }
}

fn own_name() -> String {
    let own = std::env::current_exe().unwrap();
    own.file_name().unwrap().to_str().unwrap().to_owned()
}

fn audited(level: AuditLevel) -> (Played, Arc<Log>) {
    let log = Arc::new(Log { level, events: Mutex::default() });
    let files = [("a", "text"), ("key.pem", "secret"), ("watched", "watched")];
    let view = Played::configured(POLICY, &files, InitFlags::all(), |config| Config {
        audit: Some(Arc::clone(&log) as Arc<dyn Audit>),
        ..config
    });
    (view, log)
}

fn work(view: &Played) {
    view.opens("a", O_RDONLY);
    let handle = view.open("watched", O_RDWR).unwrap();
    view.read(handle, 0, 4).unwrap();
    view.write(handle, 0, b"WA").unwrap();
    assert_eq!(view.open("key.pem", O_RDONLY).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.rename("watched", "b", 0).unwrap_err(), Errno::XDEV);
    let made = view.create("new", O_RDWR).unwrap();
    view.release(made);
    view.rename("new", "newer", 0).unwrap();
    view.unlink("newer").unwrap();
}

fn told(log: &Log) -> Vec<(&'static str, Outcome, String)> {
    let events = log.events.lock().unwrap();
    events.iter().map(|(what, outcome, path, ..)| (*what, *outcome, path.clone())).collect()
}

#[test]
fn refusals_name_the_rule() {
    let (view, log) = audited(AuditLevel::Refused);
    work(&view);
    let events = log.events.lock().unwrap();
    let [denied, weaker] = &events[..] else { panic!("{events:?}") };
    assert_eq!((denied.0, denied.1), ("open", Outcome::Refused(Errno::ACCESS)));
    assert_eq!((denied.2.as_str(), denied.3.as_deref()), ("key.pem", Some("keys")));
    assert_eq!((weaker.0, weaker.1), ("rename", Outcome::Refused(Errno::XDEV)));
    assert_eq!((weaker.2.as_str(), weaker.3.as_deref()), ("watched", None));
}

#[test]
fn opens_and_changes_of_names_are_recorded() {
    let (view, log) = audited(AuditLevel::Opens);
    work(&view);
    let expected = [
        ("open", Outcome::Passthrough, "a"),
        ("open", Outcome::Userspace, "watched"),
        ("open", Outcome::Refused(Errno::ACCESS), "key.pem"),
        ("rename", Outcome::Refused(Errno::XDEV), "watched"),
        ("create", Outcome::Passthrough, "new"),
        ("rename", Outcome::Done, "new"),
        ("unlink", Outcome::Done, "newer"),
    ];
    assert_eq!(told(&log), expected.map(|(what, outcome, path)| (what, outcome, path.to_owned())));
}

#[test]
fn every_read_and_write_through_the_server_is_recorded() {
    let (view, log) = audited(AuditLevel::All);
    work(&view);
    let events = log.events.lock().unwrap();
    let moved: Vec<_> = events.iter().filter(|event| event.4.is_some()).collect();
    assert_eq!((moved[0].0, moved[0].4, moved.len()), ("read", Some(4), 2));
    assert_eq!((moved[1].0, moved[1].2.as_str(), moved[1].4), ("write", "watched", Some(2)));
}
