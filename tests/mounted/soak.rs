//! Everything at once for a while: many processes, few descriptors, little memory, and a model that
//! knows what every file has to hold. `TOLLGATE_SOAK_SECONDS` is how long it runs: 4 s unless given,
//! 120 in the gate, 1,800 by hand.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

const DESCRIPTORS: &str = "1024";
/// Descriptors of the server beside those on DIR.
const OWN_DESCRIPTORS: usize = 64;
/// Memory that the server may use, where a control group can be made.
const MEMORY: &str = "268435456";
/// How much more memory the server may have at the end than after a quarter of the time, beside
/// what the inodes take that the kernel has come to remember.
const MAX_GROWTH_KIB: u64 = 24 << 10;
const INODE_KIB: u64 = 1;
const POLICY: &str = r#"
    [[rule]]
    path = "**/*.pem"
    action = "deny"
    [[rule]]
    path = ["worker 1", "worker 3"]
    action = "userspace"
"#;

/// Moves the server into a control group of its own, for as long as it lives.
struct Group(PathBuf);

impl Group {
    fn of(pid: u64) -> Option<Self> {
        let name = format!("tollgate-soak-{pid}");
        [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
            .into_iter()
            .find_map(|(root, limit)| {
                let group = Self(Path::new(root).join(&name));
                fs::create_dir(&group.0).ok()?;
                // Where the kernel did not fill it, this is no place for groups of this kind; the
                // directory is removed.
                fs::File::options().write(true).open(group.0.join(limit)).ok()?;
                fs::write(group.0.join(limit), MEMORY).ok()?;
                fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
                Some(group)
            })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// One caller, and what its files have to hold.
struct Worker {
    root: PathBuf,
    seed: u64,
    files: BTreeMap<String, Vec<u8>>,
}

impl Worker {
    fn new(view: &View, number: u64) -> Self {
        let root = view.at(&format!("worker {number}"));
        fs::create_dir(&root).unwrap();
        for dir in 0..4 {
            fs::create_dir(root.join(dir.to_string())).unwrap();
        }
        Self { root, seed: number * 2 + 1, files: BTreeMap::new() }
    }

    fn random(&mut self, end: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 20) % end
    }

    fn name(&mut self) -> String {
        format!("{}/{}", self.random(4), self.random(40))
    }

    fn known(&mut self) -> Option<String> {
        let count = self.files.len() as u64;
        let at = if count == 0 { return None } else { self.random(count) };
        self.files.keys().nth(usize::try_from(at).unwrap()).cloned()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let (len, byte) = (self.random(20_000), self.random(256));
        vec![u8::try_from(byte).unwrap(); usize::try_from(len).unwrap()]
    }

    fn step(&mut self) {
        let (name, bytes) = (self.name(), self.bytes());
        let path = self.root.join(&name);
        let known = self.known();
        match (self.random(8), known) {
            (0..=1, _) => {
                fs::write(&path, &bytes).unwrap();
                self.files.insert(name, bytes);
            }
            (2, Some(known)) => {
                let mut file =
                    fs::File::options().append(true).open(self.root.join(&known)).unwrap();
                file.write_all(&bytes).unwrap();
                self.files.get_mut(&known).unwrap().extend(bytes);
            }
            (3, Some(known)) if known != name => {
                fs::rename(self.root.join(&known), &path).unwrap();
                let held = self.files.remove(&known).unwrap();
                self.files.insert(name, held);
            }
            (4, Some(known)) => {
                fs::remove_file(self.root.join(&known)).unwrap();
                self.files.remove(&known);
            }
            (5, Some(known)) => {
                let len = self.files[&known].len() / 2;
                let file = fs::File::options().write(true).open(self.root.join(&known)).unwrap();
                file.set_len(len as u64).unwrap();
                self.files.get_mut(&known).unwrap().truncate(len);
            }
            (_, Some(known)) => {
                let read = fs::read(self.root.join(&known)).unwrap();
                assert!(read == self.files[&known], "{known} does not hold what was written");
            }
            (_, None) => {}
        }
    }

    fn check(&self, root: &Path) {
        let mut found = 0;
        for dir in 0..4 {
            for entry in fs::read_dir(root.join(dir.to_string())).unwrap().map(Result::unwrap) {
                let name = format!("{dir}/{}", entry.file_name().to_str().unwrap());
                assert!(fs::read(entry.path()).unwrap() == self.files[&name], "{name}");
                found += 1;
            }
        }
        assert_eq!(found, self.files.len(), "names in {}", root.display());
    }
}

/// A process that uses the view as programs do, until the file `stop` is there.
fn program(view: &View, name: &str, script: &str) -> Child {
    let dir = view.at(name);
    fs::create_dir(&dir).unwrap();
    let script = format!("set -e; while [ ! -e ../stop ]; do {script}; done");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// A tree of many files, as far as it gets until `end`: more than descriptors, more than a small
/// memory holds.
fn make_large_tree(view: &View, files: usize, end: Instant) {
    for file in (0..files).take_while(|_| Instant::now() < end) {
        let dir = view.at(&format!("large/{}", file / 1000));
        if file % 1000 == 0 {
            fs::create_dir_all(&dir).unwrap();
        }
        fs::write(dir.join(file.to_string()), "x").unwrap();
    }
}

#[test]
fn many_processes_do_everything_for_a_while() {
    if !can_mount() {
        return;
    }
    let seconds = std::env::var("TOLLGATE_SOAK_SECONDS").map_or(4, |text| text.parse().unwrap());
    let duration = Duration::from_secs(seconds);
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), POLICY, &["--max-descriptors", DESCRIPTORS]);
    let pid = view.server_report()["pid"].as_u64().unwrap();
    let group = Group::of(pid);
    println!("memory is {}", if group.is_some() { "limited" } else { "not limited here" });
    let programs = [
        ("copies", "cp -r /etc/ssl . 2>/dev/null || :; tar cf a.tar ssl; rm -rf ssl a.tar"),
        ("walks", "find .. -type f >/dev/null 2>&1 || :; ls -lR .. >/dev/null 2>&1 || :"),
        ("links", "echo a >a; ln a b; mv b c; mkdir d; mv c d; rm -rf d a"),
        ("pipes", "seq 20000 >n; sort -r n >m; wc -l m >/dev/null; mv m n; rm n"),
        ("refused", "! (echo x >k.pem) 2>/dev/null; ! cat k.pem 2>/dev/null"),
    ];
    let mut children: Vec<_> =
        programs.iter().map(|(name, script)| (*name, program(&view, name, script))).collect();
    let end = Instant::now() + duration;
    let mut early = None;
    let workers: Vec<Worker> = (0..6).map(|number| Worker::new(&view, number)).collect();
    let workers = std::thread::scope(|scope| {
        let work = |mut worker: Worker| {
            while Instant::now() < end {
                worker.step();
            }
            worker
        };
        let workers: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || work(worker))).collect();
        let large = if seconds >= 60 { 200_000 } else { 2_000 };
        let view = &view;
        scope.spawn(move || make_large_tree(view, large, end));
        while Instant::now() < end {
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
            assert!(descriptors <= 1024 + OWN_DESCRIPTORS, "{descriptors} descriptors");
            if early.is_none() && end - Instant::now() < duration * 3 / 4 {
                early = Some(view.resident_kib());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    fs::write(view.at("stop"), "").unwrap();
    for (name, child) in children.drain(..) {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {} {said}", output.status);
    }
    for worker in &workers {
        worker.check(&worker.root);
        worker.check(&lower.path().join(worker.root.file_name().unwrap()));
    }
    let early = early.expect("it ran longer than a quarter of the time");
    let (late, files) = (view.resident_kib(), fs::read_dir(view.at("large")).unwrap().count());
    println!("resident: {early} KiB, {late} KiB at the end, {files},000 files");
    let allowed = MAX_GROWTH_KIB + files as u64 * 1000 * INODE_KIB;
    assert!(late <= early + allowed, "{early} KiB, then {late} KiB");
    drop(view);
    drop(group);
}
