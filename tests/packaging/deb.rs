//! The Debian package, read by Debian's tools where they are there, else by ar and tar.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// What the package is to hold.
const EXPECTED: &[&str] = &[
    "etc/tollgate",
    "usr/bin/tollgate",
    "usr/sbin/mount.fuse.tollgate",
    "usr/sbin/umount.fuse.tollgate",
    "usr/lib/systemd/system/tollgate@.service",
    "usr/lib/sysusers.d/tollgate.conf",
    "usr/lib/udev/rules.d/70-tollgate.rules",
    "usr/lib/systemd/user/tollgate@.service",
    "usr/share/bash-completion/completions/tollgate",
    "usr/share/fish/vendor_completions.d/tollgate.fish",
    "usr/share/zsh/vendor-completions/_tollgate",
    "usr/share/man/man1/tollgate.1.gz",
    "usr/share/man/man1/tollgate-run.1.gz",
    "usr/share/man/man1/tollgate-wq-dump.1.gz",
    "usr/share/man/man8/mount.fuse.tollgate.8.gz",
    "usr/share/man/man8/umount.fuse.tollgate.8.gz",
    "usr/share/doc/tollgate/README.md",
    "usr/share/doc/tollgate/changelog.gz",
    "usr/share/doc/tollgate/copyright",
    "usr/share/doc/tollgate/third-party-licences.gz",
    "usr/share/doc/tollgate/docs/policy.md",
];

/// The package, and what it installs.
pub(crate) struct Unpacked {
    _home: tempfile::TempDir,
    pub(crate) deb: PathBuf,
    pub(crate) root: PathBuf,
    control: String,
}

/// Built once for all tests.
pub(crate) static PACKAGE: LazyLock<Unpacked> = LazyLock::new(|| {
    let home = tempfile::tempdir().unwrap();
    let deb = build(&home.path().join("a"));
    let script = "mkdir x root && cd x && ar x ../a/*.deb && cat debian-binary && \
                  tar xzf control.tar.gz && tar xzf data.tar.gz -C ../root";
    let output = sh(home.path(), script);
    assert_eq!(text(&output.stdout), "2.0\n", "{}", text(&output.stderr));
    let control = std::fs::read_to_string(home.path().join("x/control")).unwrap();
    Unpacked { deb, root: home.path().join("root"), control, _home: home }
});

fn build(out: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    packaging::build(&packaging::Deb { root, binary, level: 1, time: 1 }, out).unwrap()
}

fn sh(directory: &Path, script: &str) -> Output {
    Command::new("sh").args(["-c", script]).current_dir(directory).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn everything_is_in_its_place() {
    let root = &PACKAGE.root;
    for path in EXPECTED {
        let found = std::fs::symlink_metadata(root.join(path));
        let found = found.unwrap_or_else(|error| panic!("{path}: {error}"));
        let writable = found.permissions().mode() & 0o022 != 0;
        assert!(!writable || found.is_symlink(), "{path} can be written by others");
    }
    for program in ["usr/bin/tollgate", "usr/sbin/mount.fuse.tollgate"] {
        let mode = std::fs::metadata(root.join(program)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{program}");
    }
}

#[test]
fn what_is_unpacked_works() {
    let version = Command::new(PACKAGE.root.join("usr/bin/tollgate")).arg("--version").output();
    assert!(text(&version.unwrap().stdout).starts_with("tollgate "));
    let helper = Command::new(PACKAGE.root.join("usr/sbin/mount.fuse.tollgate")).output().unwrap();
    assert!(text(&helper.stderr).contains("expected DIR and MNT"), "{helper:?}");
    let script = "zcat usr/share/man/man1/tollgate-run.1.gz | grep -c '^.SH EXAMPLES'; \
                  bash -n usr/share/bash-completion/completions/tollgate && echo completes";
    assert_eq!(text(&sh(&PACKAGE.root, script).stdout), "1\ncompletes\n");
}

#[test]
fn the_control_file_names_what_is_needed_and_the_project_alone() {
    let field = |name: &str| {
        let start = format!("{name}: ");
        let line = PACKAGE.control.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {name} in {}", PACKAGE.control)).to_owned()
    };
    assert_eq!(field("Package"), "tollgate");
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    assert!(field("Maintainer").starts_with("The Tollgate project <"));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    assert!(field("Installed-Size").parse::<u64>().unwrap() > 1024);
}

#[test]
fn licences_of_all_libraries_are_there() {
    let copyright = PACKAGE.root.join("usr/share/doc/tollgate/copyright");
    let copyright = std::fs::read_to_string(copyright).unwrap();
    for part in ["TERMS AND CONDITIONS", "Permission is hereby granted", "Tollgate contributors"] {
        assert!(copyright.contains(part), "{part}");
    }
    let texts = text(&sh(&PACKAGE.root, "zcat usr/share/doc/tollgate/third-party*").stdout);
    // What is linked, as cargo tells it in another way than the package's builder asks.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = ["tree", "--offline", "-e", "normal,no-proc-macro", "--prefix", "none", "-p"];
    let output = Command::new(cargo)
        .args(tree)
        .args(["tollgate", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let linked: BTreeSet<String> = text(&output.stdout)
        .lines()
        .filter(|line| !line.contains("tollgate"))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect();
    assert!(linked.len() > 30, "{output:?}");
    for name in linked {
        assert!(texts.contains(&format!("\n  {name} ")), "{name} is not in the list");
    }
}

#[test]
fn the_same_sources_make_the_same_package() {
    let home = tempfile::tempdir().unwrap();
    let again = build(home.path());
    assert_eq!(again.file_name(), PACKAGE.deb.file_name());
    let same = std::fs::read(&again).unwrap() == std::fs::read(&PACKAGE.deb).unwrap();
    assert!(same, "two packages of the same sources differ");
}

#[test]
fn dpkg_reads_the_package_and_installs_it() {
    if Command::new("dpkg").arg("--version").output().is_err() {
        eprintln!("skipped: there is no dpkg");
        return;
    }
    let deb = PACKAGE.deb.to_str().unwrap();
    let output = sh(Path::new("/"), &format!("dpkg-deb --info {deb} && dpkg-deb --contents {deb}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("new Debian package, version 2.0") && said.contains("root/root"));
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: installing needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let script = format!(
        "mkdir -p var/lib/dpkg/info var/lib/dpkg/updates && touch var/lib/dpkg/status && \
         dpkg --root=. --force-depends --log=/dev/null -i {deb} && dpkg --root=. -L tollgate && \
         dpkg --root=. --force-depends -V tollgate && usr/bin/tollgate --version && \
         dpkg --root=. --log=/dev/null -P tollgate && find . -name '*tollgate*' -not -path './var/*'"
    );
    let output = sh(root.path(), &script);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains("/usr/sbin/mount.fuse.tollgate\n"), "{said}");
    assert!(!said.contains("./usr"), "something is left: {said}");
}
