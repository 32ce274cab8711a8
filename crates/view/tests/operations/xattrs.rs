//! Extended attributes.

use rustix::io::Errno;
use tollgate_fuse::abi::{GetxattrIn, SetxattrIn, SizeOut, opcode};
use zerocopy::IntoBytes;

use crate::kernel::{Played, c_string};

const POLICY: &str = "
[[rule]]
path = 'docs'
action = 'read-only'
[[rule]]
path = 'vault'
action = 'deny'
";

fn view() -> Played {
    Played::with(POLICY, &[("a", ""), ("docs", ""), ("vault", "")])
}

fn set(view: &Played, path: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
    let size = u32::try_from(value.len()).unwrap();
    let args = SetxattrIn { size, ..SetxattrIn::default() };
    let parts = [args.as_bytes(), &c_string(name), value];
    view.call(opcode::SETXATTR, view.node(path), &parts).map(drop)
}

fn get(view: &Played, path: &str, name: &str, size: u32) -> Result<Vec<u8>, Errno> {
    let args = GetxattrIn { size, padding: 0 };
    view.call(opcode::GETXATTR, view.node(path), &[args.as_bytes(), &c_string(name)])
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    let view = view();
    set(&view, "a", "user.one", b"value").unwrap();
    assert_eq!(get(&view, "a", "user.one", 100).unwrap(), b"value");
    let sized = get(&view, "a", "user.one", 0).unwrap();
    assert_eq!(sized[..4], 5_u32.to_ne_bytes());
    assert_eq!(get(&view, "a", "user.one", 2).unwrap_err(), Errno::RANGE);
    assert_eq!(get(&view, "a", "user.two", 100).unwrap_err(), Errno::NODATA);
    let args = GetxattrIn { size: 1000, padding: 0 };
    let list = view.call(opcode::LISTXATTR, view.node("a"), &[args.as_bytes()]).unwrap();
    assert!(list.windows(9).any(|window| window == b"user.one\0"));
    let args = GetxattrIn::default();
    let size: SizeOut = view.ask(opcode::LISTXATTR, view.node("a"), &[args.as_bytes()]).unwrap();
    assert_eq!(size.size as usize, list.len());
    view.call(opcode::REMOVEXATTR, view.node("a"), &[&c_string("user.one")]).unwrap();
    assert_eq!(get(&view, "a", "user.one", 100).unwrap_err(), Errno::NODATA);
}

/// Where SELinux is used each file has one.
#[test]
fn a_file_without_a_label_is_on_a_file_system_without_labels() {
    let view = view();
    let label = |view: &Played, name| get(view, name, "security.selinux", 100);
    if std::path::Path::new("/sys/fs/selinux/enforce").exists() {
        assert!(!label(&view, "a").unwrap().is_empty());
        return;
    }
    assert_eq!(label(&view, "a").unwrap_err(), Errno::OPNOTSUPP);
    // Only root may set one.
    if set(&view, "a", "security.selinux", b"system_u:object_r:etc_t:s0").is_ok() {
        assert_eq!(label(&view, "a").unwrap(), b"system_u:object_r:etc_t:s0");
    }
}

#[test]
fn attributes_follow_the_policy() {
    let view = view();
    assert_eq!(set(&view, "docs", "user.one", b"x").unwrap_err(), Errno::ROFS);
    assert_eq!(set(&view, "vault", "user.one", b"x").unwrap_err(), Errno::ACCESS);
    assert_eq!(get(&view, "vault", "user.one", 100).unwrap_err(), Errno::ACCESS);
    // What `ls -l` shows beside the mode can be seen wherever the mode can.
    let acl = get(&view, "vault", "system.posix_acl_access", 100).unwrap_err();
    assert!(acl == Errno::NODATA || acl == Errno::OPNOTSUPP, "{acl}");
    let remove = view.call(opcode::REMOVEXATTR, view.node("docs"), &[&c_string("user.one")]);
    assert_eq!(remove.unwrap_err(), Errno::ROFS);
}
