//! Sealed files of a lower layer of an overlay, which gets another file for each at its first change.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::harness::{Place, can_mount};

/// An overlay over the directory of a place, which is its lower layer.
struct Over {
    at: PathBuf,
    upper: Option<PathBuf>,
}

impl Over {
    /// `upper`: on a file system of this kind.
    fn new(place: &Place, upper: Option<&str>) -> Over {
        let (at, layers) = (place.below(""), place.base.path().join("layers"));
        let none = MountFlags::empty();
        fs::create_dir(&layers).unwrap();
        if let Some(kind) = upper {
            rustix::mount::mount("test", &layers, kind, none, None).unwrap();
        }
        ["upper", "work"].iter().for_each(|name| fs::create_dir(layers.join(name)).unwrap());
        let (lower, layer) = (at.display(), layers.display());
        let options = format!("lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work");
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("test", &at, "overlay", none, &*options).unwrap();
        Over { at, upper: upper.map(|_| layers) }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        for at in [Some(&self.at), self.upper.as_ref()].into_iter().flatten() {
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

/// Several blocks, so that their order below matters.
fn long() -> String {
    "0123456789abcdef".repeat(1000)
}

#[test]
fn each_name_of_a_sealed_file_in_a_lower_layer_is_a_file_of_its_own() {
    if !can_mount() {
        return;
    }
    for upper in [None, Some("tmpfs")] {
        let place = Place::new();
        {
            let view = place.mount(&[]);
            fs::write(view.at("vault/a"), long()).unwrap();
            for name in ["vault/b", "vault/c"] {
                fs::hard_link(view.at("vault/a"), view.at(name)).unwrap();
            }
        }
        let _over = Over::new(&place, upper);
        {
            let view = place.mount(&[]);
            let at = |name: &str| view.at(&format!("vault/{name}"));
            let held = File::options().read(true).write(true).open(at("c")).unwrap();
            held.write_all_at(b"C", 0).unwrap();
            append(&at("b"), "b");
            append(&at("a"), "a");
            held.write_all_at(b"CC", 0).unwrap();
            assert_eq!(fs::metadata(at("b")).unwrap().len(), 16_001);
            fs::write(at("a"), "anew").unwrap();
        }
        assert!(place.is_good("vault"));
        let view = place.mount(&[]);
        let of = |name: &str| fs::read_to_string(view.at(&format!("vault/{name}"))).unwrap();
        assert_eq!([of("a"), of("b")], ["anew".to_owned(), long() + "b"], "{upper:?}");
        assert_eq!(of("c"), format!("CC{}", &long()[2..]), "{upper:?}");
    }
}

#[test]
fn a_sealed_file_that_is_copied_up_while_it_is_open_stays_one_file() {
    if !can_mount() {
        return;
    }
    for upper in [None, Some("tmpfs")] {
        let place = Place::new();
        {
            let view = place.mount(&[]);
            for name in ["single", "one"] {
                fs::write(view.at("vault").join(name), long()).unwrap();
            }
            fs::hard_link(view.at("vault/one"), view.at("vault/two")).unwrap();
        }
        let _over = Over::new(&place, upper);
        let mut expected = long().into_bytes();
        {
            let view = place.mount(&["--attr-timeout", "0.1", "--watch", "off"]);
            for name in ["single", "one"] {
                let path = view.at("vault").join(name);
                let open = |path: &Path| File::options().read(true).write(true).open(path).unwrap();
                let (reader, first) = (File::open(&path).unwrap(), open(&path));
                first.write_all_at(&[b'A'; 5000], 0).unwrap();
                let linked = view.at("vault").join(format!("{name}-linked"));
                fs::hard_link(&path, &linked).unwrap();
                std::thread::sleep(Duration::from_millis(150));
                let second = open(&linked);
                second.write_all_at(&[b'B'; 6000], 6000).unwrap();
                first.write_all_at(&[b'C'; 1000], 15_000).unwrap();
                first.sync_all().unwrap();
                second.write_all_at(b"D", 1).unwrap();
                second.sync_all().unwrap();
                first.write_all_at(&[b'E'; 4096], 8192).unwrap();
                let mut bytes = vec![0; 16_000];
                reader.read_exact_at(&mut bytes, 0).unwrap();
                expected = long().into_bytes();
                expected[..5000].fill(b'A');
                expected[6000..12_000].fill(b'B');
                expected[15_000..].fill(b'C');
                expected[1] = b'D';
                expected[8192..12_288].fill(b'E');
                assert!(bytes == expected, "{name}, {upper:?}");
            }
        }
        assert!(place.is_good("vault"));
        let view = place.mount(&[]);
        for name in ["single", "single-linked", "one", "one-linked"] {
            assert!(fs::read(view.at("vault").join(name)).unwrap() == expected, "{name}");
        }
        assert_eq!(fs::read_to_string(view.at("vault/two")).unwrap(), long());
    }
}
