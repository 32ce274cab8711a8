//! Wrong input to every command: the message names what is wrong, where, and what would be right.
//!
//! Each row is a command line with the exit status and the parts that its message must have. `{D}` is
//! a directory with `dir`, `mnt`, `full`, `file` and the files that a row writes.

#[path = "support/mounting.rs"]
mod mounting;

use std::process::{Command, Output, Stdio};

use mounting::can_mount;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for directory in ["dir/src", "mnt", "full/x"] {
            std::fs::create_dir_all(place.path(directory)).unwrap();
        }
        place.write("file", "");
        let fifo = Command::new("mkfifo").arg(place.path("fifo")).status().unwrap();
        assert!(fifo.success());
        place.write("dir/a.txt", "text\n");
        place.write("policy.toml", "[[rule]]\npath = \"**/.env\"\naction = \"hide\"\n");
        place.write("damaged.jsonl", "{\"time\":\n");
        place.write("dir/.tollgate.toml", "default = \"passthrough\"\n");
        std::os::unix::fs::symlink("nowhere", place.path("dangling")).unwrap();
        std::fs::create_dir(place.path("rotated.2")).unwrap();
        std::os::unix::fs::symlink("circle", place.path("circle")).unwrap();
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// This program, ended after a while: a wrong input must not begin to serve.
    fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["60", env!("CARGO_BIN_EXE_tollgate")])
            .args(arguments)
            .env("LC_ALL", "C")
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("TOLLGATE_POLICY")
            .stdin(Stdio::null());
        command
    }

    fn filled(&self, text: &str) -> String {
        text.replace("{D}", self.0.path().to_str().unwrap())
    }

    /// Runs a row and checks its message.
    fn check(&self, line: &str, status: i32, parts: &[&str]) {
        let arguments: Vec<String> =
            line.split_whitespace().map(|word| self.filled(word)).collect();
        let output = self.command(&arguments).output().unwrap();
        assert_fails(
            line,
            &output,
            status,
            &parts.iter().map(|it| self.filled(it)).collect::<Vec<_>>(),
        );
    }
}

/// For scripts that execute copies: a child that another test forks at this moment would hold open
/// what is written here.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("BINARY", env!("CARGO_BIN_EXE_tollgate"));
    command
}

fn assert_fails(line: &str, output: &Output, status: i32, parts: &[String]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{line}: {said}");
    for part in parts {
        assert!(said.contains(part.as_str()), "{line}: `{part}` is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{line}: {said}");
    assert!(said.len() < 4000, "{line}: a message of {} bytes", said.len());
}

/// Command line, exit status, and what the message says: what, where, remedy.
type Row = (&'static str, i32, &'static [&'static str]);

const DIRECTORIES: &[Row] = &[
    ("mount {D}/dri {D}/mnt", 1, &["DIR `{D}/dri` does not exist", "did you mean `{D}/dir`?"]),
    ("mount {D}/file {D}/mnt", 1, &["DIR `{D}/file` is not a directory"]),
    ("mount {D}/circle {D}/mnt", 1, &["DIR `{D}/circle`", "circle", "name the directory itself"]),
    ("mount {D}/file/x {D}/mnt", 1, &["`{D}/file/x`", "part of the path is not a directory"]),
    ("mount {D}/dir {D}/new", 1, &["MNT `{D}/new` does not exist", "`mkdir {D}/new`"]),
    ("mount {D}/dir {D}/file", 1, &["MNT `{D}/file` is not a directory"]),
    ("mount {D}/dir {D}/full", 1, &["MNT `{D}/full` is not empty", "name an empty directory"]),
    ("mount {D}/dir {D}/dir", 1, &["MNT `{D}/dir` is DIR itself", "tollgate run"]),
    ("mount {D}/dir {D}/dir/src", 1, &["lies inside DIR", "would contain itself"]),
    ("mount {D}/dir {D}", 1, &["contains DIR", "would vanish"]),
    ("mount {D}/dir /proc", 1, &["`/proc` is already a mount point", "unmount it first"]),
    ("run {D}/dri -- true", 125, &["DIR `{D}/dri` does not exist", "did you mean `{D}/dir`?"]),
    ("run {D}/file -- true", 125, &["DIR `{D}/file` is not a directory"]),
    ("run / -- true", 125, &["DIR is `/`", "name a directory below it"]),
    ("run /proc -- true", 125, &["DIR `/proc` cannot be viewed", "steer the kernel"]),
    ("run /proc/self -- true", 125, &["cannot be viewed", "steer the kernel"]),
    ("run /sys -- true", 125, &["DIR `/sys` cannot be viewed", "steer the kernel"]),
    ("run {D}/circle -- true", 125, &["DIR `{D}/circle`", "circle"]),
    ("run --chdir {D}/no {D}/dir -- true", 125, &["--chdir `{D}/no` does not exist"]),
    ("run --chdir {D}/file {D}/dir -- true", 125, &["--chdir `{D}/file` is not a directory"]),
    ("umount {D}/mnt", 1, &["MNT `{D}/mnt` is not a mount point", "tollgate status"]),
    ("umount {D}/mtn", 1, &["MNT `{D}/mtn` does not exist", "did you mean `{D}/mnt`?"]),
    ("umount /proc", 1, &["`/proc` is a mount of type proc", "not a Tollgate view"]),
    ("doctor {D}/dri", 1, &["DIR `{D}/dri` does not exist", "did you mean"]),
    ("brief {D}/dri", 1, &["DIR `{D}/dri` does not exist"]),
    ("init --dir {D}/file", 1, &["DIR `{D}/file` is not a directory"]),
    ("check --dir {D}/dri", 1, &["DIR `{D}/dri` does not exist"]),
    ("explain --dir {D}/dri a", 1, &["DIR `{D}/dri` does not exist"]),
];

const FLAGS: &[Row] = &[
    ("", 2, &["Usage: tollgate", "run ", "--help"]),
    ("munt", 2, &["tollgate: ", "'munt'", "mount"]),
    ("mount {D}/dir", 2, &["<MNT>"]),
    ("mount --polcy x a b", 2, &["--polcy", "--policy"]),
    ("mount --threads 0 a b", 2, &["'0'", "--threads", "from 1 to 256"]),
    ("mount --threads many a b", 2, &["'many'", "--threads", "a whole number"]),
    ("mount --attr-timeout -1 a b", 2, &["'-1'", "--attr-timeout", "such as 0.5"]),
    ("mount --attr-timeout 5s a b", 2, &["'5s'", "--attr-timeout", "such as 0.5"]),
    ("mount --max-descriptors 3 a b", 2, &["'3'", "--max-descriptors", "at least 32"]),
    ("mount --transport pigeon a b", 2, &["'pigeon'", "--transport", "devfuse", "uring"]),
    ("mount --watch maybe a b", 2, &["'maybe'", "--watch", "auto, on, off"]),
    ("mount --metrics-port 70000 a b", 2, &["70000", "--metrics-port", "65535"]),
    ("mount --metrics-port 0 a b", 2, &["0", "--metrics-port", "from 1 to 65535"]),
    ("mount --metrics-port -1 a b", 2, &["'-1'", "--metrics-port", "from 1 to 65535"]),
    ("mount --threads -1 a b", 2, &["'-1'", "--threads", "a whole number"]),
    ("mount --audit x --audit-size -1 a b", 2, &["'-1'", "--audit-size", "1048576"]),
    ("mount --audit x --audit-keep -1 a b", 2, &["'-1'", "--audit-keep", "from 0 to 1000"]),
    ("mount --max-descriptors -1 a b", 2, &["'-1'", "--max-descriptors", "at least 32"]),
    ("run --cpu -1 . -- true", 125, &["'-1'", "--cpu", "from 0.01 to 4096"]),
    ("run --memory -1 . -- true", 125, &["'-1'", "--memory", "as 512M or 2G"]),
    ("run --processes -1 . -- true", 125, &["'-1'", "--processes", "1..4194304"]),
    ("mount --audit-keep 1 a b", 2, &["--audit <FILE>"]),
    ("mount --audit x --audit-level some a b", 2, &["'some'", "refused, opens, all"]),
    ("mount --audit x --audit-size 0 a b", 2, &["0", "--audit-size", "1048576"]),
    ("mount --log x a b", 2, &["--daemon"]),
    ("run {D}/dir true", 125, &["'true'", "`tollgate run {D}/dir -- true`"]),
    ("run {D}/dir", 125, &["<CMD>", "`tollgate run {D}/dir -- CMD`"]),
    ("-v run --polcy x . -- true", 125, &["--polcy", "--policy"]),
    ("--verbose run {D}/dir true", 125, &["`tollgate --verbose run {D}/dir -- true`"]),
    ("-v mount --polcy x a b", 2, &["--polcy", "--policy"]),
    ("run --fence maybe . -- true", 125, &["'maybe'", "--fence", "on, off"]),
    ("run --allow :rw . -- true", 125, &["--allow", "PATH:rw"]),
    ("run --allow ~/x:rw {D}/dir -- true", 125, &["`~/x` does not exist", "write `$HOME`"]),
    ("run --allow {D}/full:rx {D}/dir -- true", 125, &["`{D}/full` does", "`:rw`, not `:rx`"]),
    ("run --fence off --allow {D} {D}/dir -- true", 125, &["--allow", "--fence off"]),
    (
        "run --allow {D}/no {D}/dir -- true",
        125,
        &["--allow", "`{D}/no` does not exist", "`mkdir -p {D}/no`"],
    ),
    ("run --allow /dev/pts/ptmx {D}/dir -- true", 125, &["is a terminal", "`--allow /dev/pts`"]),
    ("run --user no-such-user {D}/dir -- true", 125, &["--user `no-such-user`", "no such user"]),
    ("run --user root:x {D}/dir -- true", 125, &["--user `root:x`", "NAME or UID[:GID]"]),
    ("top --once --count 2", 2, &["--once", "--count"]),
    ("top --interval 0", 2, &["'0'", "seconds from 0.1 to 3600"]),
    ("status --metrics --json", 2, &["--metrics", "--json"]),
    ("status {D}/mnt", 1, &["no server of this user shows at `{D}/mnt`", "tollgate status"]),
    ("top --once {D}/mnt", 1, &["`{D}/mnt`"]),
    ("reload --all {D}/dir", 2, &["--all"]),
    ("reload {D}/dir", 1, &["no server of this user shows `{D}/dir`", "tollgate status"]),
    ("completions csh", 2, &["'csh'", "bash"]),
    ("topology --synthetic numa:x", 1, &["numa:x"]),
    ("topology --scope socket", 2, &["'socket'", "cache_shard"]),
    ("hugepage tune --rounds 0", 2, &["0", "--rounds", "1..=1000"]),
    ("hugepage tune --plan nonsense", 1, &["nonsense"]),
    ("wq", 2, &["dump", "monitor", "set"]),
    ("wq dump --socket {D}/no.sock", 1, &["`{D}/no.sock`", "without --socket", "serve"]),
    ("wq dump --socket {D}/file", 1, &["`{D}/file`", "not a socket", "without --socket"]),
    ("wq monitor --socket {D}/no.sock", 1, &["`{D}/no.sock`", "without --socket"]),
    ("wq dump --pid 1 --socket x", 2, &["--pid", "--socket"]),
    ("wq monitor --count 0", 2, &["0", "--count"]),
    ("wq set q", 2, &["<ATTRIBUTE=VALUE>"]),
];

/// Of commands that have few rows above.
const FURTHER: &[Row] = &[
    ("brief --policy agnt", 1, &["policy `agnt`", "did you mean `agent`?"]),
    ("brief --polcy x", 2, &["--polcy", "--policy"]),
    ("broker --sock x", 2, &["'--sock'", "'--socket'"]),
    ("broker --user-group", 2, &["--user-group <", "a value is required"]),
    ("broker more", 2, &["'more'", "Usage: tollgate broker"]),
    ("completions", 2, &["<SHELL>", "Usage: tollgate completions"]),
    ("completions bash more", 2, &["'more'", "Usage: tollgate completions"]),
    ("demo --kep", 2, &["'--kep'", "'--keep'"]),
    ("demo --no-sped", 2, &["'--no-sped'", "'--no-speed'"]),
    ("demo more", 2, &["'more'", "Usage: tollgate demo"]),
    ("doctor --jsn", 2, &["'--jsn'", "'--json'"]),
    ("doctor {D}/file", 1, &["DIR `{D}/file` is not a directory"]),
    ("hugepage", 2, &["tune", "Usage: tollgate hugepage"]),
    ("man-pages", 2, &["<DIR>"]),
    ("man-pages {D}/file", 1, &["directory `{D}/file` cannot be made"]),
    ("man-pages a b", 2, &["'b'", "Usage: tollgate man-pages"]),
    ("mount --audit {D}/dir/log {D}/dir {D}/mnt", 1, &["name one elsewhere", "`~/log`"]),
    ("reload --al", 2, &["'--al'", "'--all'"]),
    ("seal init {D}/no", 1, &["directory `{D}/no`"]),
    ("seal convert {D}/dir", 2, &["--domain <NAME>|--policy <POLICY>"]),
    ("seal check", 2, &["--domain <NAME>|--policy <POLICY>"]),
    ("seal rotate", 2, &["--domain <NAME>|--policy <POLICY>"]),
    ("seal export --domain v {D}/dir", 2, &["--to <DEST>"]),
    ("seal rotate --dir {D}/dir --domain v", 1, &["no keyring", "`tollgate seal init {D}/dir`"]),
    ("seal check --domain v --policy p {D}/dir", 2, &["--domain", "--policy"]),
    ("status --metrics {D}/mnt", 1, &["shows at `{D}/mnt`", "`tollgate status` lists"]),
    ("test {D}/no.toml", 1, &["tests `{D}/no.toml`", "docs/policy.md has an example"]),
    ("topology --sysfs x", 2, &["'--sysfs'", "Usage: tollgate topology"]),
    ("why a.txt", 1, &["not inside of `tollgate run`", "`tollgate explain PATH`"]),
    ("why", 2, &["<PATH>"]),
    ("why --wirte a.txt", 2, &["'--wirte'", "'--write'"]),
];

const FILES: &[Row] = &[
    ("check {D}/polciy.toml", 1, &["`{D}/polciy.toml`", "did you mean `{D}/policy.toml`?"]),
    ("check agnet", 1, &["policy `agnet`", "did you mean `agent`?"]),
    ("check whatever", 1, &["policy `whatever`", "built-in policies: agent, node"]),
    ("check {D}/dir", 1, &["policy `{D}/dir`", "not a regular file"]),
    ("check /dev/zero", 1, &["policy `/dev/zero`", "not a regular file"]),
    ("run --policy {D}/no.toml {D}/dir -- true", 125, &["policy `{D}/no.toml`", "No such file"]),
    ("mount --policy {D}/dir {D}/dir {D}/mnt", 1, &["policy `{D}/dir`", "not a regular file"]),
    ("mount --audit {D}/dir/log {D}/dir {D}/mnt", 1, &["`{D}/dir/log` lies inside DIR"]),
    ("mount --audit {D}/mnt/log {D}/dir {D}/mnt", 1, &["lies inside the mount point `{D}/mnt`"]),
    (
        "mount --audit {D}/no/log {D}/dir {D}/mnt",
        1,
        &["directory of audit file `{D}/no/log`", "mkdir -p {D}/no`"],
    ),
    ("mount --audit {D}/full {D}/dir {D}/mnt", 1, &["audit file `{D}/full`"]),
    (
        "mount --daemon --log {D}/fifo {D}/dir {D}/mnt",
        1,
        &["log file `{D}/fifo`", "a FIFO that nobody"],
    ),
    (
        "mount --daemon --log {D}/policy.toml --policy {D}/policy.toml {D}/dir {D}/mnt",
        1,
        &["log file `{D}/policy.toml`: the policy is read from `{D}/policy.toml`", "of its own"],
    ),
    (
        "mount --daemon --log {D}/dir/.tollgate-seal {D}/dir {D}/mnt",
        1,
        &["log file `{D}/dir/.tollgate-seal`: the keys of sealed files are kept in", "of its own"],
    ),
    (
        "mount --daemon --log {D}/records.1 --audit {D}/records {D}/dir {D}/mnt",
        1,
        &["log file `{D}/records.1`: the audit log is", "of its own"],
    ),
    (
        "mount --daemon --log {D}/mnt/log {D}/dir {D}/mnt",
        1,
        &["log file `{D}/mnt/log` lies inside the mount point `{D}/mnt`"],
    ),
    (
        "mount --audit {D}/rotated {D}/dir {D}/mnt",
        1,
        &["`{D}/rotated`", "`{D}/rotated.2`, which it is renamed to, is a directory"],
    ),
    ("mount {D}/dir {D}/dangling", 1, &["`{D}/dangling` is a symbolic link that leads nowhere"]),
    ("mount --metrics-port x {D}/dir {D}/mnt", 2, &["'x'", "a port, from 1 to 65535"]),
    ("mount --audit-size 0 {D}/dir {D}/mnt", 2, &["'0'", "from 1 to 1048576"]),
    ("top --count 0", 2, &["'0'", "at least 1"]),
    ("mount --audit {D}/fifo {D}/dir {D}/mnt", 1, &["`{D}/fifo`", "it is not a regular file"]),
    ("audit {D}/no.jsonl", 1, &["audit log `{D}/no.jsonl` cannot be read", "No such file"]),
    ("learn {D}/damaged.jsonl", 1, &["{D}/damaged.jsonl:1", "no policy is proposed", "1 line"]),
    ("audit {D}/damaged.jsonl", 1, &["{D}/damaged.jsonl:1"]),
    ("audit --since yesterday {D}/damaged.jsonl", 1, &["yesterday", "10m", "2026-01-31"]),
    ("audit --path [ {D}/damaged.jsonl", 1, &["`[`", "--path", "`[` without `]`"]),
    ("learn", 2, &["<FILE|RUN>"]),
    ("learn zzzz", 1, &["`zzzz`", "16 hexadecimal digits"]),
    ("learn {D}/no.jsonl", 1, &["`{D}/no.jsonl` cannot be read"]),
    ("learn 0123456789abcdef", 1, &["name the audit log", "0123456789abcdef"]),
    ("learn {D}/file", 1, &["nothing in the logs was granted"]),
    ("init nodejs --dir {D}/dir", 2, &["'nodejs'", "node", "python"]),
    ("init --dir {D}/dir", 1, &["`{D}/dir/.tollgate.toml` is there already", "--force"]),
    (
        "init --dir {D}/dir --output {D}/no/p.toml",
        1,
        &["`{D}/no/p.toml` cannot be written", "`mkdir -p {D}/no`"],
    ),
    ("redact test /dev/zero", 1, &["`/dev/zero`", "it is no file", "bytes"]),
    ("redact test {D}/fifo", 1, &["`{D}/fifo`", "FIFO", "nobody writes to it"]),
    ("test {D}/fifo", 1, &["tests `{D}/fifo` cannot be read", "not a regular file"]),
    ("check {D}/fifo", 1, &["policy `{D}/fifo`", "not a regular file"]),
    ("redact test {D}/dir", 1, &["`{D}/dir`", "it is a directory"]),
    ("test {D}/no.toml", 1, &["tests `{D}/no.toml` cannot be read", "docs/policy.md"]),
    ("explain", 2, &["<PATH>"]),
    ("explain /etc/passwd", 1, &["`/etc/passwd` is not in DIR"]),
    ("explain ../x", 1, &["`../x` is not in DIR"]),
    ("explain --dir {D}/dir a.tx", 1, &["PATH `a.tx`", "did you mean `a.txt`?"]),
    ("explain --dir src src/main.rs", 1, &["PATH `src/main.rs`", "PATH is named from DIR"]),
    ("explain --operation chmod a", 2, &["'chmod'", "read, write, create, list"]),
    ("explain --as uid=nobody-here a", 2, &["uid=`nobody-here`", "0 to 4294967295"]),
    ("explain --as exe=node a", 2, &["exe=`node`", "absolute path"]),
    ("explain --as pid=1 a", 2, &["`pid=1`", "uid=USER"]),
];

/// A policy, and what is said of it; each message has the place before it.
const POLICIES: &[(&str, &[&str])] = &[
    ("rule = 1", &[":1:8: `rule` is an integer", "[[rule]]"]),
    ("default = true", &[":1:11: `default` is a boolean", "a string"]),
    ("defualt = 'deny'", &[":1:1: unknown key `defualt`", "default"]),
    ("default = 'hide'", &["the default cannot be `hide`", "`**`"]),
    ("default = 'native'", &["the default cannot be `native`"]),
    ("mode = 'try'", &["mode `try`", "enforce, audit"]),
    ("[[rule]", &[":1:"]),
    ("[[rule]]\npath = 'a'", &[":1:1: rule without `action`", "passthrough"]),
    ("[[rule]]\naction = 'deny'", &[":1:1: rule without `path`", "`path = \"**\"`"]),
    ("[[rule]]\npath = 7\naction = 'deny'", &[":2:8: `path` is an integer", "list of strings"]),
    ("[[rule]]\npath = []\naction = 'deny'", &[":2:8: `path` is empty"]),
    ("[[rule]]\npath = 'a'\naction = 'block'", &[":3:10: unknown action `block`", "deny, hide"]),
    ("[[rule]]\npath = 'a'\naction = 'seal'", &[":1:1: rule without `domain`"]),
    ("[[rule]]\npath = 'a'\nkind = 'dir'\naction = 'deny'", &["unknown kind `dir`", "directory"]),
    ("[[rule]]\npath = 'a'\noperation = 'exec'\naction = 'deny'", &["`exec`", "read, write"]),
    ("[[rule]]\npath = '/a'\naction = 'deny'", &[":2:9: ", "absolute", "write `a`"]),
    ("[[rule]]\npath = 'a/../b'\naction = 'deny'", &[":2:11: ", "`..` in a glob"]),
    ("[[rule]]\npath = 'a[b'\naction = 'deny'", &[":2:10: ", "`[` without `]`"]),
    ("[[rule]]\npath = 'a**b'\naction = 'deny'", &[":2:10: ", "`**` must stand alone"]),
    ("[[rule]]\npath = 'a//b'\naction = 'deny'", &[":2:11: ", "two slashes", "write one"]),
    ("[[rule]]\npath = 'a'\nsize = 5\naction = 'deny'", &[":3:8: `size`", "{ min = "]),
    ("[[rule]]\npath = 'a'\nsize = { min = '5 MB' }\naction = 'deny'", &["5 MB", "MiB"]),
    (
        "[[rule]]\npath = 'a'\nsize = { min = '99999999 TiB' }\naction = 'deny'",
        &["fewer than 16777216 TiB"],
    ),
    ("[[rule]]\npath = 'a'\nsize = { min = 'KiB' }\naction = 'deny'", &["a whole number"]),
    ("[[rule]]\npath = 'a'\nsize = { min = 2, max = 1 }\naction = 'deny'", &["holds for no file"]),
    (
        "[[rule]]\npath = 'a'\ncontent = { regex = '(' }\naction = 'deny'",
        &[":3:22: regex: unclosed"],
    ),
    (
        "[[rule]]\npath = 'a'\ncontent = { magic = '\\x' }\naction = 'deny'",
        &["magic: ", "`\\xNN`", "single quotes"],
    ),
    ("[[rule]]\npath = 'a'\nuid = -1\naction = 'deny'", &[":3:7: `uid` is -1", "0 to 4294967295"]),
    ("[[rule]]\npath = 'a'\nuid = 'nobody-here'\naction = 'deny'", &["`nobody-here`", "a number"]),
    ("[[rule]]\npath = 'a'\nexe = 'node'\naction = 'deny'", &["begins with `/` or `**/`"]),
    (
        "[[rule]]\npath = 'a'\nuid = 1\naction = 'hide'",
        &["`hide` cannot depend on `uid`", "kernel"],
    ),
    ("[[rule]]\npath = 'a*'\naction = 'native'", &["`native` takes directories", "list the"]),
    ("[[rule]]\npath = 'a'\ncreate = true\naction = 'deny'", &["`create` belongs to `native`"]),
    (
        "[[rule]]\nname = 'x'\npath = 'a'\naction = 'deny'\n[[rule]]\nname = 'x'\npath = 'b'\naction = 'deny'",
        &[":6:8: second rule named `x`", "line 1"],
    ),
];

#[test]
fn directories_that_do_not_do() {
    let place = Place::new();
    DIRECTORIES.iter().for_each(|(line, status, parts)| place.check(line, *status, parts));
}

#[test]
fn flags_and_words_that_do_not_do() {
    let place = Place::new();
    let rows = FLAGS.iter().chain(FURTHER);
    rows.for_each(|(line, status, parts)| place.check(line, *status, parts));
}

#[test]
fn a_stack_that_is_too_small_is_named() {
    for (line, status) in [("run . -- true", 125), ("-v run . -- true", 125), ("-v status", 1)] {
        let script = format!("ulimit -s 64; exec \"$BINARY\" {line}");
        let output = shell(&script).output().unwrap();
        let parts = ["64 KiB (`ulimit -s`)".into(), "256 are needed".into()];
        assert_fails(line, &output, status, &parts);
    }
}

#[test]
fn files_that_do_not_do() {
    let place = Place::new();
    let output = place.command(&["explain".into(), String::new()]).output().unwrap();
    assert_fails("explain ''", &output, 1, &["PATH is empty".into(), "`.`".into()]);
    let words = ["explain", "--dir", "{D}/dir", "a.txt", "--to", ""].map(|word| place.filled(word));
    let output = place.command(&words).output().unwrap();
    assert_fails("explain --to ''", &output, 1, &["`--to` is empty".into(), "in DIR".into()]);
    FILES.iter().for_each(|(line, status, parts)| place.check(line, *status, parts));
}

#[test]
fn policies_that_do_not_do() {
    let place = Place::new();
    for (policy, parts) in POLICIES {
        place.write("wrong.toml", policy);
        place.check("check {D}/wrong.toml", 1, &["policy is wrong\n{D}/wrong.toml:"]);
        place.check("check {D}/wrong.toml", 1, parts);
        // The line itself, with a mark below.
        place.check("check {D}/wrong.toml", 1, &[" | ", "^"]);
    }
}

/// What is wrong would not be seen beside a path of thousands of bytes.
#[test]
fn a_path_that_is_too_long_is_cut_and_nothing_is_proposed_for_it() {
    let place = Place::new();
    let long = format!("{0}/", "d".repeat(200)).repeat(30);
    let named = |before: &[&str], after: &[&str]| {
        let arguments = [before, &[&*long], after].concat();
        let arguments: Vec<_> = arguments.into_iter().map(|one| place.filled(one)).collect();
        place.command(&arguments).output().unwrap()
    };
    for (output, why) in [
        (named(&["run", "--policy", "none"], &["--", "true"]), "does not exist"),
        (named(&["check", "--dir"], &[]), "does not exist"),
        (named(&["explain"], &[]), "too long"),
        (named(&["run", "--policy"], &["{D}/dir", "--", "true"]), "too long"),
        (named(&["audit"], &[]), "too long"),
    ] {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
        assert!(said.len() < 1_500 && said.contains("[...]"), "{said}");
        assert!(!said.contains("did you mean"), "{said}");
    }
    // A directory that is there, and whose path the kernel does not take.
    let script = "for i in $(seq 30); do mkdir $N && cd -P $N; done
        for dir in . \"$PWD\"; do $BINARY run --policy none \"$dir\" -- true; done
        $BINARY run --policy none -- true; $BINARY run -- true; cd /; rm -rf $TOP";
    let top = place.path("deep");
    std::fs::create_dir(&top).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).env("BINARY", env!("CARGO_BIN_EXE_tollgate"));
    shell.env("N", "d".repeat(200)).env("TOP", &top).current_dir(&top);
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("is too long (4,095").count(), 4, "{said}");
    assert!(said.len() < 4_000 && !said.contains("did you mean"), "{said}");
}

/// A home that is no directory has no configuration in it.
#[test]
fn a_configuration_that_cannot_be_there_is_not_there() {
    let place = Place::new();
    for home in ["/dev/null", "/etc/passwd"] {
        for line in ["check {D}/policy.toml", "check", "explain --dir {D}/dir a.txt"] {
            let arguments: Vec<String> =
                line.split_whitespace().map(|word| place.filled(word)).collect();
            let mut command = place.command(&arguments);
            command.env_remove("XDG_CONFIG_HOME").env("HOME", home);
            command.current_dir(place.path("dir"));
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{home}, {line}: {said}");
        }
    }
}

#[test]
fn configurations_and_tests_that_do_not_do() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("config/tollgate")).unwrap();
    let configurations: [(&str, &[&str]); 5] = [
        ("polcy = 'agent'", &["config.toml` is wrong", "config.toml:1:1: ", "`polcy`", "`policy`"]),
        ("policy = 7", &["config.toml` is wrong", "config.toml:1:10: "]),
        ("[commands.npm]\n", &["config.toml` is wrong", "policy"]),
        ("policy = 'no-such'", &["no-such` cannot be read"]),
        ("policy = 'agnet'", &["agnet` cannot be read", "did you mean `agent`?"]),
    ];
    for (text, parts) in configurations {
        place.write("config/tollgate/config.toml", text);
        place.check("run {D}/dir -- true", 125, parts);
        place.check("explain a", 1, parts);
    }
    std::fs::remove_file(place.path("config/tollgate/config.toml")).unwrap();
    let tests: [(&str, &[&str]); 7] = [
        ("policy = 'agent'", &["expect nothing", "[[test]]"]),
        ("[[test]]\npath = 'a'\nexpect = 'deny'", &["are wrong", "`policy`"]),
        (
            "policy = 'agent'\n[[test]]\npath = 'a'\nexpect = 'no'",
            &["are wrong", "t.toml:4:10: ", "`no`", "`deny`"],
        ),
        ("policy = 'agent'\n[[test]]\npath = '/a'\nexpect = 'deny'", &["t.toml:2", "absolute"]),
        (
            "policy = 'agent'\n[[test]]\npath = []\nexpect = 'deny'",
            &["t.toml:2", "`path` is empty"],
        ),
        (
            "policy = 'agent'\n[[test]]\npath = 'a'\noperation = []\nexpect = 'deny'",
            &["t.toml:2", "`operation` is empty"],
        ),
        (
            "policy = 'agent'\n[[test]]\npath = 'a'\nas = 'uid=x-y'\nexpect = 'deny'",
            &["t.toml:2", "uid=`x-y`"],
        ),
    ];
    for (text, parts) in tests {
        place.write("t.toml", text);
        place.check("test {D}/t.toml", 1, parts);
    }
}

/// What is only wrong while a server runs, or has died.
#[test]
fn views_that_do_not_do() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let words = |line: &str| -> Vec<String> {
        line.split_whitespace().map(|word| place.filled(word)).collect()
    };
    let mut server = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(words("mount --policy none {D}/dir {D}/mnt"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let shown = place.path("mnt/a.txt");
    let begin = std::time::Instant::now();
    while !shown.exists() {
        assert!(begin.elapsed().as_secs() < 60, "no view");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    place.check("mount {D}/dir {D}/mnt", 1, &["`{D}/mnt` is already a mount point", "unmount it"]);
    // Two servers that would wait for each other.
    place.check("mount {D}/mnt {D}/dir/src", 1, &["MNT `{D}/dir/src`", "would contain itself"]);
    place.check("reload {D}/dir", 1, &["kept the policy", "started without a policy"]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let number = port.local_addr().unwrap().port();
    let busy = format!("run --metrics-port {number} {{D}}/dir -- true");
    place.check(&busy, 125, &["--metrics-port", &number.to_string(), "in use"]);
    let inside = std::fs::File::open(place.path("mnt/a.txt")).unwrap();
    place.check("umount {D}/mnt", 1, &["`{D}/mnt` is in use", "--lazy"]);
    drop(inside);
    // A user is told so by a helper, which stands in for the one of the system here.
    let says = "#!/bin/sh\necho \"fusermount3: failed to unmount $3: Device or resource busy\" >&2; exit 1\n";
    std::fs::write(place.path("says"), says).unwrap();
    let script = place.filled("cd {D}; cp says fusermount3; cp $BINARY .; chmod 755 . fusermount3; PATH=$PWD:$PATH exec setpriv --reuid 4321 --clear-groups ./tollgate umount mnt");
    let output = shell(&script).output().unwrap();
    let parts = ["`mnt` is in use".to_owned(), "--lazy".to_owned()];
    assert_fails(&script, &output, 1, &parts);
    server.kill().unwrap();
    server.wait().unwrap();
    place.check("status {D}/mnt", 1, &["`{D}/mnt`", "its server is dead", "tollgate umount"]);
    place.check("run {D}/mnt -- true", 125, &["`{D}/mnt`", "server is dead", "tollgate umount"]);
    place.check("explain --dir {D}/mnt a.txt", 1, &["server is dead"]);
    let output = place.command(&words("umount {D}/mnt")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_table_is_not_short() {
    let rows = DIRECTORIES.len() + FLAGS.len() + FURTHER.len() + FILES.len() + POLICIES.len();
    assert!(rows > 100, "{rows} rows");
}

/// What is advised must not be refused in turn.
#[test]
fn the_root_of_all_paths_is_no_directory_to_run_in() {
    let place = Place::new();
    let mut command = place.command(&["run".into(), "--".into(), "true".into()]);
    let output = command.current_dir("/").env("HOME", "/root").output().unwrap();
    assert_fails("run in /", &output, 125, &["name a directory below it".to_owned()]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("run / -- CMD"));
}

#[test]
fn a_user_may_not_name_a_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    for (user, part) in [("4321", "leave it out"), ("4322", "another user")] {
        let script = place.filled(&format!(
            "cd {{D}}; cp $BINARY .; chmod 755 .; export HOME=$PWD; exec setpriv --reuid 4321 \\
             --clear-groups ./tollgate run --user {user} dir -- true"
        ));
        let output = shell(&script).output().unwrap();
        let parts = ["only root may run CMD as another user".to_owned(), part.to_owned()];
        assert_fails(&script, &output, 125, &parts);
    }
}
