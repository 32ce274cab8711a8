//! The record is complete: every change, every failure, every look-up of a hidden name.

use std::sync::{Arc, Mutex};

use libc::{O_APPEND, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
use rustix::io::Errno;
use tollgate_fuse::InitFlags;
use tollgate_fuse::abi::{FallocateIn, SetattrIn, SetxattrIn, opcode};
use tollgate_view::{Audit, AuditLevel, Config, Detail, Event, Outcome};
use zerocopy::IntoBytes;

use crate::kernel::{Played, c_string};

/// Bits of `fattr` in FUSE_SETATTR.
const FATTR_UID: u32 = 2;
const FATTR_GID: u32 = 4;
const FATTR_ATIME: u32 = 16;

const POLICY: &str = "
[[rule]]
name = 'keys'
path = '**/*.pem'
action = 'deny'
[[rule]]
name = 'env'
path = '**/.env'
action = 'hide'
[[rule]]
name = 'watched'
path = 'watched'
action = 'userspace'
";

/// Keeps a line for each event.
struct Log(AuditLevel, Mutex<Vec<String>>);

impl Audit for Log {
    fn level(&self) -> AuditLevel {
        self.0
    }

    fn record(&self, event: &Event<'_>) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let outcome = match event.outcome {
            Outcome::Refused(errno) => format!("refused {}", errno.raw_os_error()),
            Outcome::WouldRefuse(errno) => format!("would refuse {}", errno.raw_os_error()),
            Outcome::Failed(errno) => format!("failed {}", errno.raw_os_error()),
            _ => "done".to_owned(),
        };
        let detail = match event.detail {
            Detail::None => String::new(),
            Detail::Access(access) => {
                let words = [
                    (access.reads(), "r"),
                    (access.writes(), "w"),
                    (access.appends(), "a"),
                    (access.truncates(), "t"),
                ];
                words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect()
            }
            Detail::To(path) => text(path),
            Detail::Size(bytes) => bytes.to_string(),
            Detail::Mode(mode) => format!("{mode:o}"),
            Detail::Owner(uid, gid) => format!("{uid:?} {gid:?}"),
            Detail::Attribute(name) => text(name),
            Detail::Span { offset, bytes } => format!("{offset}+{bytes}"),
            Detail::Masked(masked) => format!("{:?}", masked.by_detector().collect::<Vec<_>>()),
        };
        let (what, path, rule) = (event.operation, text(event.path), event.rule.unwrap_or("-"));
        let line = format!("{what} {path} {rule} {outcome} {detail}");
        self.1.lock().unwrap().push(line.trim_end().to_owned());
    }
}

fn recorded(policy: &str, level: AuditLevel) -> (Played, Arc<Log>) {
    let log = Arc::new(Log(level, Mutex::default()));
    let files = [("a", "text"), ("dir/b", ""), ("key.pem", "secret"), (".env", "secret")];
    let files = [&files[..], &[("watched", "watched")]].concat();
    let view = Played::configured(policy, &files, InitFlags::all(), |config| Config {
        audit: Some(Arc::clone(&log) as Arc<dyn Audit>),
        ..config
    });
    (view, log)
}

/// The lines since the last call.
fn lines(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.1.lock().unwrap())
}

fn set(view: &Played, path: &str, args: &SetattrIn) -> Result<(), Errno> {
    view.call(opcode::SETATTR, view.node(path), &[args.as_bytes()]).map(drop)
}

#[test]
fn sizes_modes_owners_and_times_that_change_are_recorded() {
    let (view, log) = recorded(POLICY, AuditLevel::Opens);
    view.set_size("a", 3).unwrap();
    view.set_mode("dir/b", 0o640).unwrap();
    let owner = rustix::process::geteuid().as_raw();
    let valid = FATTR_UID | FATTR_GID;
    let chown = SetattrIn { valid, uid: owner, gid: owner, ..SetattrIn::default() };
    set(&view, "a", &chown).unwrap();
    set(&view, "a", &SetattrIn { valid: FATTR_ATIME, atime: 7, ..SetattrIn::default() }).unwrap();
    let some = format!("Some({owner})");
    assert_eq!(
        lines(&log),
        [
            "truncate a - done 3".to_owned(),
            "chmod dir/b - done 640".to_owned(),
            format!("chown a - done {some} {some}"),
            "utimes a - done".to_owned(),
        ]
    );
}

#[test]
fn extended_attributes_that_change_are_recorded() {
    let (view, log) = recorded(POLICY, AuditLevel::Opens);
    let args = SetxattrIn { size: 1, ..SetxattrIn::default() };
    let name = c_string("user.one");
    let parts: [&[u8]; 3] = [args.as_bytes(), &name, b"1"];
    view.call(opcode::SETXATTR, view.node("a"), &parts).unwrap();
    view.call(opcode::REMOVEXATTR, view.node("a"), &[&name]).unwrap();
    let gone = view.call(opcode::REMOVEXATTR, view.node("a"), &[&name]);
    assert_eq!(gone.unwrap_err(), Errno::NODATA);
    assert_eq!(
        lines(&log),
        [
            "setxattr a - done user.one",
            "removexattr a - done user.one",
            &format!("removexattr a - failed {} user.one", libc::ENODATA),
        ]
    );
}

#[test]
fn opens_say_what_they_asked_for_and_which_rule_made_the_mode() {
    let (view, log) = recorded(POLICY, AuditLevel::Opens);
    view.opens("a", O_RDONLY);
    view.opens("a", O_WRONLY | O_APPEND);
    view.opens("watched", O_RDWR | O_TRUNC);
    let made = view.create("new", O_WRONLY).unwrap();
    view.release(made);
    assert_eq!(
        lines(&log),
        [
            "open a - done r",
            "open a - done wa",
            "open watched watched done rwt",
            "create new - done w",
        ]
    );
}

#[test]
fn both_names_of_a_rename_and_of_a_link_are_recorded() {
    let (view, log) = recorded(POLICY, AuditLevel::Opens);
    view.link("a", "dir/c").unwrap();
    view.rename("a", "dir/d", 0).unwrap();
    assert_eq!(view.rename("key.pem", "open", 0).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.rename("dir/d", "x.pem", 0).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.rename("watched", "free", 0).unwrap_err(), Errno::XDEV);
    let denied = libc::EACCES;
    assert_eq!(
        lines(&log),
        [
            "link a - done dir/c".to_owned(),
            "rename a - done dir/d".to_owned(),
            format!("rename key.pem keys refused {denied} open"),
            format!("rename dir/d keys refused {denied} x.pem"),
            format!("rename watched - refused {} free", libc::EXDEV),
        ]
    );
}

#[test]
fn what_the_file_system_beneath_refuses_is_recorded_as_failed() {
    let (view, log) = recorded(POLICY, AuditLevel::Opens);
    assert_eq!(view.rmdir("dir").unwrap_err(), Errno::NOTEMPTY);
    assert_eq!(view.rename("a", "dir", 0).unwrap_err(), Errno::ISDIR);
    assert_eq!(view.mkdir("dir").unwrap_err(), Errno::EXIST);
    assert_eq!(
        lines(&log),
        [
            format!("rmdir dir - failed {}", libc::ENOTEMPTY),
            format!("rename a - failed {} dir", libc::EISDIR),
            format!("mkdir dir - failed {}", libc::EEXIST),
        ]
    );
}

#[test]
fn both_files_of_an_exchange_and_space_that_is_allocated_are_recorded() {
    let (view, log) = recorded("", AuditLevel::Opens);
    let opened = view.open("a", O_RDWR).unwrap();
    let args = FallocateIn { fh: opened.number, offset: 2, length: 10, ..FallocateIn::default() };
    view.call(opcode::FALLOCATE, view.node("a"), &[args.as_bytes()]).unwrap();
    assert_eq!(std::fs::metadata(view.below("a")).unwrap().len(), 12);
    let nowhere = FallocateIn { mode: 1 << 30, ..args };
    view.call(opcode::FALLOCATE, view.node("a"), &[nowhere.as_bytes()]).unwrap_err();
    view.rename("a", "dir/b", libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(
        lines(&log),
        [
            "open a - done rw".to_owned(),
            "fallocate a - done 2+10".to_owned(),
            format!("fallocate a - failed {} 2+10", libc::EOPNOTSUPP),
            "rename a - done dir/b".to_owned(),
            "rename dir/b - done a".to_owned(),
        ]
    );
}

#[test]
fn look_ups_of_hidden_names_are_recorded_at_every_level() {
    let (view, log) = recorded(POLICY, AuditLevel::Refused);
    assert!(view.lookup(".env").is_none());
    assert!(view.lookup("missing").is_none());
    assert_eq!(lines(&log), [format!("lookup .env env refused {}", libc::ENOENT)]);
    assert_eq!(view.counts().hidden, 1);
}

#[test]
fn rules_that_are_only_recorded_refuse_nothing() {
    let policy = format!("mode = 'audit'\n{POLICY}");
    let (view, log) = recorded(&policy, AuditLevel::Refused);
    assert!(view.lookup(".env").is_some());
    let denied = view.open("key.pem", O_RDONLY).unwrap();
    assert!(denied.is_passthrough());
    view.rename("key.pem", "open", 0).unwrap();
    let (denied, missing) = (libc::EACCES, libc::ENOENT);
    assert_eq!(
        lines(&log),
        [
            format!("lookup .env env would refuse {missing}"),
            format!("open key.pem keys would refuse {denied} r"),
            format!("rename key.pem keys would refuse {denied} open"),
            format!("rename key.pem - would refuse {} open", libc::EXDEV),
        ]
    );
    assert_eq!(view.counts().would_refuse, 4);
}
