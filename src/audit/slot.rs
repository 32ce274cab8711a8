//! One queued event: fixed in size, so that recording allocates nothing.

use std::borrow::Cow;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use serde::Serialize;

use tollgate_view::{Access, Detail, Event, FileContent, Masked, Outcome};

use crate::escape::json_text;

/// Bytes kept of a path. A longer one is cut; the record carries its whole length.
pub(super) const PATH_MAX_BYTES: usize = 1024;
/// Bytes kept of an executable's path.
pub(super) const EXE_MAX_BYTES: usize = 256;
/// Bytes kept of a rule's name.
pub(super) const RULE_MAX_BYTES: usize = 128;

/// At most `N` bytes of a text, and how long the whole was.
#[derive(Clone)]
struct Bytes<const N: usize> {
    bytes: [u8; N],
    whole_len: usize,
}

impl<const N: usize> Bytes<N> {
    const EMPTY: Self = Self { bytes: [0; N], whole_len: 0 };

    fn set(&mut self, text: &[u8]) {
        let kept = text.len().min(N);
        self.bytes[..kept].copy_from_slice(&text[..kept]);
        self.whole_len = text.len();
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.whole_len.min(N)]
    }

    fn cut_from(&self) -> Option<usize> {
        (self.whole_len > N).then_some(self.whole_len)
    }
}

/// An event, copied.
#[derive(Clone)]
pub(super) struct Slot {
    time: SystemTime,
    operation: &'static str,
    outcome: Outcome,
    uid: u32,
    gid: u32,
    pid: u32,
    inode: u64,
    kept: Kept,
    has_exe: bool,
    has_rule: bool,
    exe: Bytes<EXE_MAX_BYTES>,
    path: Bytes<PATH_MAX_BYTES>,
    /// A second path, or the name of an attribute, as `kept` says.
    second: Bytes<PATH_MAX_BYTES>,
    rule: Bytes<RULE_MAX_BYTES>,
}

impl Slot {
    /// A slot with nothing in it.
    pub(super) fn empty() -> Self {
        Self {
            time: UNIX_EPOCH,
            operation: "",
            outcome: Outcome::Passthrough,
            uid: 0,
            gid: 0,
            pid: 0,
            inode: 0,
            kept: Kept::None,
            has_exe: false,
            has_rule: false,
            exe: Bytes::EMPTY,
            path: Bytes::EMPTY,
            second: Bytes::EMPTY,
            rule: Bytes::EMPTY,
        }
    }

    /// The path, as far as it fits.
    pub(super) fn path(&self) -> &[u8] {
        self.path.get()
    }

    /// The same with `...` behind what does not fit: several paths may begin so.
    pub(super) fn shown_path(&self) -> Cow<'_, [u8]> {
        match self.path.cut_from() {
            None => self.path().into(),
            Some(_) => [self.path(), b"..."].concat().into(),
        }
    }

    pub(super) fn time(&self) -> SystemTime {
        self.time
    }

    pub(super) fn operation(&self) -> &'static str {
        self.operation
    }

    /// The rule's name, as far as it fits; empty for the default.
    pub(super) fn rule(&self) -> &[u8] {
        self.rule.get()
    }

    /// User and program.
    pub(super) fn who(&self) -> (u32, Box<[u8]>) {
        (self.uid, self.exe.get().into())
    }

    pub(super) fn outcome_word(&self) -> &'static str {
        outcome(self.outcome).0
    }

    /// The error's number, 0 for what has none.
    pub(super) fn errno(&self) -> i32 {
        match self.outcome {
            Outcome::Refused(errno) | Outcome::WouldRefuse(errno) | Outcome::Failed(errno) => {
                errno.raw_os_error()
            }
            _ => 0,
        }
    }

    /// The access that was asked for, in words, or a second path or name as far as it fits.
    pub(super) fn asked(&self) -> Option<Box<[u8]>> {
        match self.kept {
            Kept::Access(access) => Some(access_words(access).into_bytes().into()),
            Kept::To | Kept::Attribute => Some(self.second.get().into()),
            _ => None,
        }
    }

    /// Whether the policy refused it, or would have.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.outcome, Outcome::Refused(_) | Outcome::WouldRefuse(_))
    }

    /// The program that asked, as far as it fits; else the thread and the user.
    pub(super) fn caller(&self) -> Cow<'_, [u8]> {
        if self.has_exe {
            return self.exe.get().into();
        }
        format!("thread {} of user {}", self.pid, self.uid).into_bytes().into()
    }

    /// Copies `event`; cuts what is too long.
    pub(super) fn fill(&mut self, event: &Event<'_>) {
        self.time = SystemTime::now();
        self.operation = event.operation;
        self.outcome = event.outcome;
        (self.uid, self.gid, self.pid) = (event.uid, event.gid, event.pid);
        self.inode = event.inode;
        self.keep(event.detail);
        self.has_exe = event.exe.is_some();
        self.exe.set(event.exe.unwrap_or_default());
        self.path.set(event.path);
        self.has_rule = event.rule.is_some();
        self.rule.set(event.rule.unwrap_or_default().as_bytes());
    }

    fn keep(&mut self, detail: Detail<'_>) {
        self.kept = match detail {
            Detail::None => Kept::None,
            Detail::Access(access) => Kept::Access(access),
            Detail::To(path) => {
                self.second.set(path);
                Kept::To
            }
            Detail::Size(bytes) => Kept::Size(bytes),
            Detail::Mode(mode) => Kept::Mode(mode),
            Detail::Owner(uid, gid) => Kept::Owner(uid, gid),
            Detail::Attribute(name) => {
                self.second.set(name);
                Kept::Attribute
            }
            Detail::Span { offset, bytes } => Kept::Span(offset, bytes),
            Detail::Masked(masked) => Kept::Masked(masked),
        };
    }

    fn detail(&self) -> DetailFields {
        let second = || Text::new(self.second.get(), self.second.cut_from());
        let none = DetailFields::default();
        match self.kept {
            Kept::None => none,
            Kept::Access(access) => {
                let content = content_word(access.content());
                DetailFields { access: Some(access_words(access)), content, ..none }
            }
            Kept::To => {
                let Text { text, hex, whole_len } = second();
                DetailFields { to: Some(text), to_hex: hex, to_length: whole_len, ..none }
            }
            Kept::Size(bytes) => DetailFields { size: Some(bytes), ..none },
            Kept::Mode(mode) => DetailFields { mode: Some(format!("{mode:04o}")), ..none },
            Kept::Owner(owner, group) => DetailFields { owner, group, ..none },
            Kept::Attribute => DetailFields { attribute: Some(second().text), ..none },
            Kept::Span(offset, bytes) => {
                DetailFields { offset: Some(offset), bytes: Some(bytes), ..none }
            }
            Kept::Masked(masked) => DetailFields { masked: Some(masked), ..none },
        }
    }

    /// Appends the event as one line of JSON.
    pub(super) fn write_line(&self, run: &str, line: &mut Vec<u8>) -> serde_json::Result<()> {
        self.write(run, None, false, line)
    }

    /// Appends a line about `count` events like this one, which is the last of them; with
    /// `together` they had different paths.
    pub(super) fn write_repeated(
        &self,
        run: &str,
        count: u64,
        first: SystemTime,
        together: bool,
        line: &mut Vec<u8>,
    ) -> serde_json::Result<()> {
        self.write(run, Some((count, timestamp(first))), together, line)
    }

    fn write(
        &self,
        run: &str,
        repeated: Option<(u64, String)>,
        without_path: bool,
        line: &mut Vec<u8>,
    ) -> serde_json::Result<()> {
        let (outcome, errno) = outcome(self.outcome);
        let path = Text::new(self.path.get(), self.path.cut_from());
        let exe = self.has_exe.then(|| Text::new(self.exe.get(), self.exe.cut_from()));
        let record = Record {
            time: timestamp(self.time),
            event: if repeated.is_some() { "repeated" } else { "request" },
            run,
            count: repeated.as_ref().map(|(count, _)| *count),
            since: repeated.map(|(_, since)| since),
            operation: self.operation,
            outcome,
            errno,
            uid: self.uid,
            gid: self.gid,
            pid: self.pid,
            exe: exe.as_ref().map(|exe| exe.text.as_str()),
            exe_hex: exe.as_ref().and_then(|exe| exe.hex.as_deref()),
            exe_length: exe.as_ref().and_then(|exe| exe.whole_len),
            inode: self.inode,
            path: (!without_path).then_some(path.text.as_str()),
            path_hex: path.hex.as_deref().filter(|_| !without_path),
            path_length: path.whole_len.filter(|_| !without_path),
            rule: self.has_rule.then(|| String::from_utf8_lossy(self.rule.get()).into_owned()),
            detail: self.detail(),
        };
        line.extend_from_slice(json_text(&serde_json::to_string(&record)?).as_bytes());
        line.push(b'\n');
        Ok(())
    }
}

/// Field by field in docs/audit.md.
#[derive(Serialize)]
struct Record<'a> {
    time: String,
    event: &'static str,
    run: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    operation: &'static str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<Cow<'static, str>>,
    uid: u32,
    gid: u32,
    pid: u32,
    exe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe_hex: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe_length: Option<usize>,
    inode: u64,
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_length: Option<usize>,
    rule: Option<String>,
    #[serde(flatten)]
    detail: DetailFields,
}

/// What a slot keeps of a [`Detail`].
#[derive(Clone, Copy)]
enum Kept {
    None,
    Access(Access),
    To,
    Size(u64),
    Mode(u32),
    Owner(Option<u32>, Option<u32>),
    Attribute,
    Span(u64, u64),
    Masked(Masked),
}

/// Those that a record has.
#[derive(Default, Serialize)]
struct DetailFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    masked: Option<Masked>,
}

fn outcome(outcome: Outcome) -> (&'static str, Option<Cow<'static, str>>) {
    match outcome {
        Outcome::Passthrough => ("passthrough", None),
        Outcome::Userspace => ("userspace", None),
        Outcome::Done => ("done", None),
        Outcome::Refused(errno) => ("refused", Some(errno_name(errno))),
        Outcome::WouldRefuse(errno) => ("would-refuse", Some(errno_name(errno))),
        Outcome::Failed(errno) => ("failed", Some(errno_name(errno))),
    }
}

/// What an open asked for, in words with `+` between.
fn content_word(content: FileContent) -> Option<&'static str> {
    match content {
        FileContent::Lower => None,
        FileContent::Watched => Some("watched"),
        FileContent::Redacted => Some("redacted"),
        FileContent::Sealed => Some("sealed"),
    }
}

fn access_words(access: Access) -> String {
    let words = [
        (access.reads(), "read"),
        (access.writes(), "write"),
        (access.appends(), "append"),
        (access.truncates(), "truncate"),
    ];
    let held: Vec<_> = words.iter().filter(|(held, _)| *held).map(|(_, word)| *word).collect();
    held.join("+")
}

/// The symbol of an error; `E` and the number for errors that file systems do not return.
pub(super) fn errno_name(errno: Errno) -> Cow<'static, str> {
    let name = match errno {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::INTR => "EINTR",
        Errno::IO => "EIO",
        Errno::NXIO => "ENXIO",
        Errno::BADF => "EBADF",
        Errno::AGAIN => "EAGAIN",
        Errno::NOMEM => "ENOMEM",
        Errno::ACCESS => "EACCES",
        Errno::BUSY => "EBUSY",
        Errno::EXIST => "EEXIST",
        Errno::XDEV => "EXDEV",
        Errno::NOTDIR => "ENOTDIR",
        Errno::ISDIR => "EISDIR",
        Errno::INVAL => "EINVAL",
        Errno::NFILE => "ENFILE",
        Errno::MFILE => "EMFILE",
        Errno::TXTBSY => "ETXTBSY",
        Errno::FBIG => "EFBIG",
        Errno::NOSPC => "ENOSPC",
        Errno::ROFS => "EROFS",
        Errno::MLINK => "EMLINK",
        Errno::RANGE => "ERANGE",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::LOOP => "ELOOP",
        Errno::NODATA => "ENODATA",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::STALE => "ESTALE",
        Errno::DQUOT => "EDQUOT",
        other => return Cow::Owned(format!("E{}", other.raw_os_error())),
    };
    Cow::Borrowed(name)
}

/// Bytes in a form that JSON can carry. The hex form is present when the text form is not exact, so
/// that two different paths never look the same.
struct Text {
    text: String,
    hex: Option<String>,
    whole_len: Option<usize>,
}

impl Text {
    fn new(bytes: &[u8], whole_len: Option<usize>) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { text: text.to_owned(), hex: None, whole_len },
            Err(_) => Self {
                text: String::from_utf8_lossy(bytes).into_owned(),
                hex: Some(hex(bytes)),
                whole_len,
            },
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(2 * bytes.len());
    for byte in bytes {
        // A Vec takes every write.
        let _ = write!(text, "{byte:02x}");
    }
    String::from_utf8(text).unwrap_or_default()
}

/// RFC 3339 in UTC with microseconds.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_epoch.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Days since 1970-01-01 to year, month, day: Howard Hinnant's `civil_from_days`, for days that are
/// not negative.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event(path: &[u8]) -> Event<'_> {
        Event {
            operation: "open",
            outcome: Outcome::Refused(Errno::ACCESS),
            uid: 1,
            gid: 2,
            pid: 3,
            exe: Some(b"/bin/cat"),
            inode: 4,
            path,
            rule: Some("keys"),
            detail: Detail::None,
        }
    }

    fn line(event: &Event<'_>) -> serde_json::Value {
        let mut slot = Slot::empty();
        slot.fill(event);
        let mut line = Vec::new();
        slot.write_line("r", &mut line).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn a_record_has_no_control_characters() {
        let mut slot = Slot::empty();
        slot.fill(&event("a\n\u{9b}2J\u{7f}".as_bytes()));
        let mut text = Vec::new();
        slot.write_line("r", &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.trim_end().contains(char::is_control), "{text}");
    }

    #[test]
    fn a_record_says_who_what_and_which_rule() {
        let line = line(&event(b"a/id_rsa"));
        assert_eq!(line["path"], "a/id_rsa");
        assert_eq!(line["outcome"], "refused");
        assert_eq!(line["errno"], "EACCES");
        assert_eq!(line["exe"], "/bin/cat");
        assert_eq!(line["rule"], "keys");
        assert!(line.get("path_hex").is_none() && line.get("path_length").is_none());
    }

    #[test]
    fn a_path_that_is_not_utf8_is_kept_exactly() {
        let (one, two) = (line(&event(b"a\xff\nb")), line(&event(b"a\xfe\nb")));
        assert_eq!(one["path"], two["path"]);
        assert_eq!(one["path_hex"], "61ff0a62");
        assert_eq!(two["path_hex"], "61fe0a62");
    }

    #[test]
    fn a_long_path_is_cut_and_says_so() {
        let line = line(&event(&[b'x'; PATH_MAX_BYTES + 1]));
        assert_eq!(line["path"].as_str().unwrap().len(), PATH_MAX_BYTES);
        assert_eq!(line["path_length"], PATH_MAX_BYTES + 1);
    }

    #[test]
    fn nothing_of_an_earlier_event_stays_in_a_slot() {
        let mut slot = Slot::empty();
        slot.fill(&event(b"a/long/path"));
        slot.fill(&Event { exe: None, rule: None, ..event(b"b") });
        let mut line = Vec::new();
        slot.write_line("r", &mut line).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["path"], "b");
        assert!(line["exe"].is_null() && line["rule"].is_null());
    }

    #[test]
    fn times_are_utc() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::new(seconds, 7_000));
        assert_eq!(at(0), "1970-01-01T00:00:00.000007Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.000007Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000007Z");
    }
}
