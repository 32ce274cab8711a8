//! What programs are told of sealed files, beside files of the bare directory below.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;

use crate::harness::{Place, View, can_mount};

/// The same name in the view, sealed, and in the bare directory.
fn both(place: &Place, view: &View<'_>, name: &str) -> [PathBuf; 2] {
    [view.at(&format!("vault/{name}")), place.below(&format!("open/{name}"))]
}

pub(crate) fn make_by_mknod(path: &Path, mode: u32) -> Result<(), Errno> {
    mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(mode), 0)
}

/// As `tar --xattrs -x` does.
#[test]
fn a_file_that_is_made_by_mknod_is_written_and_read() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    for path in both(&place, &view, "f") {
        make_by_mknod(&path, 0o640).unwrap();
        assert_eq!(make_by_mknod(&path, 0o640), Err(Errno::EXIST));
        let made = fs::metadata(&path).unwrap();
        assert_eq!((made.len(), made.mode() & 0o7777), (0, 0o640));
        assert_eq!(fs::read(&path).unwrap(), b"");
        rustix::fs::setxattr(&path, "user.k", b"v", rustix::fs::XattrFlags::empty()).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"content");
    }
    assert!(fs::read(place.below("vault/f")).unwrap().starts_with(b"TGSEALED"));
    // Never opened, also by nobody who could.
    make_by_mknod(&view.at("vault/never opened"), 0o600).unwrap();
    make_by_mknod(&view.at("vault/for nobody"), 0).unwrap();
    drop(view);
    assert!(place.is_good("vault"));
    let view = place.mount(&[]);
    for name in ["never opened", "for nobody"] {
        assert_eq!(fs::read(view.at("vault").join(name)).unwrap(), b"");
    }
}
