//! The control sockets of this program's servers: what they take, and how to ask all of them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::bail;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tollgate_control::{
    ControlError, Directory, Discovery, Found, PATIENCE, Peer, REPLY_MAX_BYTES, Server, TIME_LIMIT,
    error_reply,
};

use crate::believed::{OF_GUESTS, is_believed_in, is_read_only};
use crate::escape::shown;
use crate::forged::{self, Room};
use crate::{lingering, messages, mountinfo};

pub(crate) use crate::believed::{DIRECTORY, directory};

/// The kind of socket that a server of a view has.
const KIND: &str = "view";
/// Set by `run --user`: those sockets, as in `PATH`.
pub(crate) const FOR_GUEST: &str = "TOLLGATE_CONTROL";

/// What a server can be asked for.
pub(crate) trait Reporter: Send + Sync + 'static {
    /// The report of `status`, a JSON object.
    fn status(&self) -> Value;
    /// What of it a guest may know.
    fn brief(&self) -> Value;
    /// Requests and threads, a JSON object. The paths in it are for `peer`s that may see them.
    fn requests(&self, peer: &Peer<'_>) -> Value;
    /// The same as Prometheus text.
    fn metrics(&self) -> String;
    /// Whether [`Reporter::reload`] would succeed now: a JSON object, with the error if not.
    fn may_reload(&self, peer: &Peer<'_>) -> Value;
    /// Reads the policy again, for `peer`s that may have it so; a JSON object.
    fn reload(&self, peer: &Peer<'_>) -> Value;
    /// Which rule or which option decides over a path; a JSON object.
    fn why(&self, about: &About) -> Value;
}

/// What can be asked, as a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// The report.
    Status,
    /// Requests and threads.
    Requests,
    /// The same as Prometheus text.
    Metrics,
    /// Whether the policy may be read again.
    MayReload,
    /// That the policy is read again.
    Reload,
    /// What holds for a path.
    Why(About),
}

/// A path, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    /// Absolute, without `.` and `..`.
    #[serde(with = "crate::any_path")]
    pub(crate) path: std::path::PathBuf,
    /// To change it; else to read it.
    pub(crate) write: bool,
    pub(crate) directory: bool,
}

/// Opens the socket of this process.
///
/// # Errors
/// When the directory is not private to this user, or the socket cannot be made.
pub(crate) fn serve(reporter: Arc<dyn Reporter>) -> Result<Server, ControlError> {
    serve_in(&directory(), reporter)
}

fn serve_in(directory: &Directory, reporter: Arc<dyn Reporter>) -> Result<Server, ControlError> {
    directory.serve(KIND, move |peer, request| reply(request, peer, &*reporter))
}

/// The user who CMD is given to by a `run` of root, and the socket at which the server answers that
/// user.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) uid: u32,
    pub(crate) socket: PathBuf,
}

impl Guest {
    /// # Errors
    /// When there is no place for the socket.
    pub(crate) fn new(uid: u32) -> Result<Self, ControlError> {
        let socket = Directory::at(OF_GUESTS).path_for_another(KIND)?;
        Ok(Self { uid, socket })
    }

    /// The directory of such sockets.
    pub(crate) fn directory() -> &'static Path {
        Path::new(OF_GUESTS)
    }

    /// Makes that directory before there are such sockets.
    ///
    /// # Errors
    /// As [`Directory::prepare_for_all`].
    pub(crate) fn prepare_directory() -> Result<(), ControlError> {
        Directory::at(OF_GUESTS).prepare_for_all()
    }
}

/// Opens a socket of this process for `guest`, who learns what holds for a path, and little else.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve_guest(
    reporter: Arc<dyn Reporter>,
    guest: &Guest,
) -> Result<Server, ControlError> {
    let answer = move |_: &Peer<'_>, request: &str| reply_to_guest(request, &*reporter);
    Server::start_for(&guest.socket, guest.uid, answer)
}

fn reply_to_guest(request: &str, reporter: &dyn Reporter) -> String {
    match serde_json::from_str(request) {
        Ok(Request::Status) => reporter.brief().to_string(),
        Ok(Request::Why(about)) => reporter.why(&about).to_string(),
        Ok(Request::Requests | Request::Metrics | Request::MayReload | Request::Reload) => {
            error_reply("that is for the user who started the server, and root")
        }
        Err(error) => error_reply(&format!("not a request: {error}")),
    }
}

fn reply(request: &str, peer: &Peer<'_>, reporter: &dyn Reporter) -> String {
    match serde_json::from_str(request) {
        Ok(Request::Status) => reporter.status().to_string(),
        Ok(Request::Requests) => reporter.requests(peer).to_string(),
        Ok(Request::Metrics) => reporter.metrics().trim_end().to_owned(),
        Ok(Request::MayReload) => reporter.may_reload(peer).to_string(),
        Ok(Request::Reload) => reporter.reload(peer).to_string(),
        Ok(Request::Why(about)) => reporter.why(&about).to_string(),
        Err(error) => error_reply(&format!("not a request: {error}")),
    }
}

/// A server and its reply.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) found: Found,
    pub(crate) report: Map<String, Value>,
}

/// What came of asking all servers.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The reports of `status`, in the order in which the servers started.
    pub(crate) reports: Vec<Value>,
    /// Those that gave no reply in time.
    pub(crate) silent: Vec<Found>,
}

/// What servers replied to one request.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    pub(crate) replies: Vec<Report>,
    /// Servers that gave none in time.
    pub(crate) silent: Vec<Found>,
}

/// Whether servers that cannot be asked are reported on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warnings {
    Shown,
    Left,
}

/// The replies of all servers of this user, by mount point.
///
/// # Errors
/// When the directory is there and cannot be read, or is not private to this user.
pub(crate) fn ask_all(request: &Request, warnings: Warnings) -> Result<Replies, ControlError> {
    ask_all_in(&directory(), Of::All, request, warnings, in_time())
}

/// The same for who wants to know about one server: `is_meant` says whether a reply is its. Others that do not
/// answer soon after that one are left out.
///
/// # Errors
/// As [`ask_all`].
pub(crate) fn ask_for(
    is_meant: &dyn Fn(&Map<String, Value>) -> bool,
    request: &Request,
    warnings: Warnings,
) -> Result<Replies, ControlError> {
    ask_all_in(&directory(), Of::Meant(is_meant), request, warnings, in_time())
}

/// Whether this member of a reply is `path`. Text in JSON is UTF-8: of other paths it has what is shown of
/// them.
pub(crate) fn is_path(member: &Value, path: &Path) -> bool {
    member.as_str().is_some_and(|text| text == path.to_string_lossy())
}

/// Whether a report or a list of requests is about the view at `mnt`.
pub(crate) fn is_at(mnt: &Path) -> impl Fn(&Map<String, Value>) -> bool {
    move |reply| reply.get("mount_point").is_some_and(|point| is_path(point, mnt))
}

/// Which servers' replies are wanted.
#[derive(Clone, Copy)]
enum Of<'a> {
    All,
    /// That of this process, if it has a socket here; else those of all.
    Process(u32),
    /// The one whose reply is as this says, and of the others what comes soon.
    Meant(&'a dyn Fn(&Map<String, Value>) -> bool),
}

/// What all servers of this user report to `status`, in the order in which they started; those whose
/// views are not mounted here are last.
///
/// Each report gets the member `pid_here`: the server's process id in the pid namespace of this
/// process, or null if the server is not in it.
///
/// # Errors
/// As [`ask_all`].
pub(crate) fn reports() -> Result<Vec<Value>, ControlError> {
    Ok(survey()?.reports)
}

/// As [`reports`], with the servers that gave no reply in time.
///
/// # Errors
/// As [`ask_all`].
pub(crate) fn survey() -> Result<Survey, ControlError> {
    survey_in(&directory(), Of::All)
}

/// The same of the server with this process id alone, if there is one.
///
/// # Errors
/// As [`ask_all`].
pub(crate) fn survey_of(server: Option<u32>) -> Result<Survey, ControlError> {
    survey_in(&directory(), server.map_or(Of::All, Of::Process))
}

/// As [`survey`], for who wants to know about the view at `mnt`: others that do not answer soon after
/// its server are left out.
///
/// # Errors
/// As [`ask_all`].
pub(crate) fn survey_at(mnt: &Path) -> Result<Survey, ControlError> {
    survey_in(&directory(), Of::Meant(&is_at(mnt)))
}

fn survey_in(directory: &Directory, of: Of<'_>) -> Result<Survey, ControlError> {
    let with_pid = |Report { found, mut report }: Report| {
        report.insert("pid_here".to_owned(), found.pid.into());
        Value::Object(report)
    };
    let until = in_time();
    let asked = ask_all_in(directory, of, &Request::Status, Warnings::Shown, until)?;
    // Finding them removes the sockets that killed servers left, here those of work queues.
    let _ = directory.servers_until(tollgate_workqueue::control::KIND, until);
    let mut reports: Vec<_> = asked.replies.into_iter().map(with_pid).collect();
    let mounts = mountinfo::read().unwrap_or_default();
    // Of two at one path, the one that shows there comes first.
    reports.sort_by_cached_key(|report| {
        (lingering::is_not_here(report, &mounts), report["started"].to_string())
    });
    Ok(Survey { reports, silent: asked.silent })
}

/// Until when servers are waited for, all together.
fn in_time() -> Instant {
    Instant::now() + PATIENCE
}

fn ask_all_in(
    directory: &Directory,
    of: Of<'_>,
    request: &Request,
    warnings: Warnings,
    until: Instant,
) -> Result<Replies, ControlError> {
    let warn = |text: &str| {
        if warnings == Warnings::Shown {
            messages::warn(text);
        }
    };
    let guests = of_guest();
    let mut discovery = match directory.servers_until(KIND, until.min(Instant::now() + TIME_LIMIT))
    {
        // The directory may be that of the user who CMD was before `--user`.
        Err(_) if !guests.is_empty() => Discovery::default(),
        other => other?,
    };
    discovery.found.extend(guests);
    let is_wanted = |found: &Found| matches!(of, Of::Process(pid) if found.pid == Some(pid));
    if discovery.found.iter().any(is_wanted) {
        discovery.found.retain(is_wanted);
    }
    for trouble in discovery.troubles {
        warn(&messages::in_words(&trouble.into()));
    }
    let mut replies = Vec::new();
    let mut silent = Vec::new();
    let is_meant = |answer: &Answer| match (of, answer) {
        (Of::Meant(is_meant), Some(reply)) => is_meant(reply),
        _ => false,
    };
    let at = directory.path().to_owned();
    for (found, answer) in ask_at_once(at, &discovery.found, request, until, is_meant) {
        match answer {
            Ok(report) => replies.extend(report.map(|report| Report { found, report })),
            Err(error) => {
                warn(&messages::in_words(&error));
                if error.downcast_ref().is_some_and(ControlError::is_silence) {
                    silent.push(found);
                }
            }
        }
    }
    replies.sort_by_cached_key(|reply| reply.report.get("mount_point").map(ToString::to_string));
    Ok(Replies { replies, silent })
}

/// The servers that answer this process as a guest.
fn of_guest() -> Vec<Found> {
    let paths = std::env::var_os(FOR_GUEST).filter(|_| !is_root()).unwrap_or_default();
    let sockets = std::env::split_paths(&paths).filter(|path| path.starts_with(OF_GUESTS));
    sockets.map(|path| Found { path, pid: None, uid: 0 }).collect()
}

/// Servers that are asked at the same time; the next one when one has answered.
pub(crate) const AT_ONCE: usize = 64;
/// How long the others have for their answers once the server that is meant has given its own.
const FOR_OTHERS: Duration = Duration::from_millis(250);

/// Asks all servers, at the same time, until `end`; the answers, in the order of the servers. Those that did not answer
/// in time after one that `is_meant` are left out. `directory`: that of this user's sockets.
fn ask_at_once(
    directory: PathBuf,
    servers: &[Found],
    request: &Request,
    end: Instant,
    is_meant: impl Fn(&Answer) -> bool,
) -> Vec<(Found, anyhow::Result<Answer>)> {
    let (sender, receiver) = channel();
    let (all, next) = (servers.to_vec(), AtomicUsize::new(0));
    let (shared, request) = (Arc::new((all, next, Room::default())), request.clone());
    let ask = move || {
        let (all, next, room) = &*shared;
        while let Some((place, found)) = one_of(all, next) {
            let room = (!may_be_relied_on(&directory, &found.path)).then_some(room);
            // Nobody may wait for it any more.
            let _ = sender.send((place, ask_one(found, &request, end, room)));
        }
    };
    for _ in 0..servers.len().min(AT_ONCE) {
        // Not scoped: who does not answer is not waited for.
        let ask_aside = ask.clone();
        let aside = move || {
            // They are for the thread that reads them later, as the one that restores a terminal. Where nobody
            // else is there to take one, a thread that still waits here would, and lose it.
            let _ = crate::sys::block_all_signals();
            ask_aside();
        };
        if std::thread::Builder::new().spawn(aside).is_err() {
            // Without another thread they are asked here.
            ask();
            break;
        }
    }
    // Its sender ends with it.
    drop(ask);
    let (mut received, mut until) = (Vec::new(), None);
    loop {
        let left = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
        let next = match left {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(left) => receiver.recv_timeout(left),
        };
        let Ok((place, answer)) = next else { break };
        if answer.as_ref().is_ok_and(&is_meant) {
            until.get_or_insert_with(|| Instant::now() + FOR_OTHERS);
        }
        received.push((place, answer));
    }
    received.sort_by_key(|(place, _)| *place);
    received.into_iter().map(|(place, answer)| (servers[place].clone(), answer)).collect()
}

/// The next one that nobody has asked.
fn one_of<'f>(all: &'f [Found], next: &AtomicUsize) -> Option<(usize, &'f Found)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, all.get(place)?))
}

/// What a server said; `None` for one that ends just now.
type Answer = Option<Map<String, Value>>;

/// Whether no CMD of a `run` answers there. `directory`: that of this user's sockets.
fn may_be_relied_on(directory: &Path, socket: &Path) -> bool {
    is_believed_in(directory, socket, &is_read_only) || socket.starts_with(OF_GUESTS)
}

/// `room`: for the reply, where CMD of a `run` may have forged it.
fn ask_one(
    found: &Found,
    request: &Request,
    end: Instant,
    room: Option<&Room>,
) -> anyhow::Result<Answer> {
    let max = room.map_or(REPLY_MAX_BYTES, |_| forged::MAX_LEN);
    let text = match tollgate_control::ask_at_most(&found.path, &line(request), end, max) {
        Ok(text) => text,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let shown = shown(&found.path);
    if room.is_some_and(|room| !room.take(&text)) {
        bail!("the server at `{shown}`: its reply is too long, or those of others were");
    }
    match serde_json::from_str::<Value>(&text) {
        Ok(report) if report["error"].is_string() => {
            bail!("the server at `{shown}`: {}", report["error"])
        }
        Ok(Value::Object(report)) => Ok(Some(report)),
        Ok(_) => {
            bail!("the server at `{shown}`: its reply is no report; is it of another version?")
        }
        Err(error) => bail!("the server at `{shown}`: its reply is not JSON: {error}"),
    }
}

/// The Prometheus text of one server.
///
/// # Errors
/// As [`tollgate_control::ask`], and when the server replies with an error.
pub(crate) fn metrics(socket: &Path) -> anyhow::Result<String> {
    let is_relied_on = may_be_relied_on(directory().path(), socket);
    let max = if is_relied_on { REPLY_MAX_BYTES } else { forged::MAX_LEN };
    let text = tollgate_control::ask_at_most(socket, &line(&Request::Metrics), in_time(), max)?;
    // Prometheus text is no JSON.
    let reply = serde_json::from_str::<Value>(&text).unwrap_or_default();
    if reply["error"].is_string() {
        bail!("the server at `{}`: {}", shown(socket), reply["error"])
    }
    Ok(text + "\n")
}

/// Has one server read its policy again; its reply. Without `apply` it only says whether it would.
///
/// # Errors
/// As [`tollgate_control::ask_until`].
pub(crate) fn reload(socket: &Path, apply: bool, until: Instant) -> Result<String, ControlError> {
    let request = if apply { Request::Reload } else { Request::MayReload };
    tollgate_control::ask_until(socket, &line(&request), until)
}

fn line(request: &Request) -> String {
    serde_json::to_string(request).expect("a word is JSON")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// That there is no server, at `mnt` if one was asked for, or none that answers.
pub(crate) fn nobody(mnt: Option<&Path>, silent: &[Found]) -> String {
    match (mnt, no_answer(silent)) {
        (None, Some(who)) => format!("no server of this user answers: {who}"),
        (Some(mnt), Some(who)) => {
            format!("no server that answers shows at `{}`; {who}", shown(mnt))
        }
        (None, None) => match std::env::var_os("TOLLGATE_RUN").filter(|_| !is_root()) {
            // The user of `--user` may have lost the variable that names the server's socket.
            Some(dir) => format!(
                "no server of this user runs; ask outside about that of `{}`",
                shown(Path::new(&dir))
            ),
            None => "no server of this user runs".to_owned(),
        },
        (Some(mnt), None) => format!(
            "no server of this user shows at `{}`; `tollgate status` lists those that run",
            shown(mnt)
        ),
    }
}

/// That these servers did not answer.
pub(crate) fn no_answer(silent: &[Found]) -> Option<String> {
    let mut names: Vec<_> = silent
        .iter()
        .map(|found| match found.pid {
            Some(pid) => format!("process {pid}"),
            None => format!("that of `{}`", shown(&found.path)),
        })
        .collect();
    // A process may have very many sockets.
    let mut named = HashSet::new();
    names.retain(|name| named.insert(name.clone()));
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("{one} does not answer (stopped, frozen, or it hangs)")),
        [some @ .., last] => Some(format!(
            "{} and {last} do not answer (stopped, frozen, or they hang)",
            some.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Replies the same to everything.
    struct Fixed(Value);

    impl Reporter for Fixed {
        fn status(&self) -> Value {
            self.0.clone()
        }

        fn brief(&self) -> Value {
            json!({ "brief": true })
        }

        fn requests(&self, _: &Peer<'_>) -> Value {
            self.0.clone()
        }

        fn metrics(&self) -> String {
            "up 1\nyes 2\n".to_owned()
        }

        fn may_reload(&self, _: &Peer<'_>) -> Value {
            self.0.clone()
        }

        fn reload(&self, _: &Peer<'_>) -> Value {
            self.0.clone()
        }

        fn why(&self, _: &About) -> Value {
            self.0.clone()
        }
    }

    fn fixture() -> (tempfile::TempDir, Directory) {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::at(home.path().join("sockets"));
        (home, directory)
    }

    #[test]
    fn each_server_is_asked_until_it_ends() {
        let (_home, directory) = fixture();
        let server = |pid, started| {
            let report = json!({ "pid": pid, "started": started });
            serve_in(&directory, Arc::new(Fixed(report))).unwrap()
        };
        let second = server(5, "later");
        let _first = server(6, "earlier");
        let here = std::process::id();
        let report =
            |pid: u32, started: &str| json!({ "pid": pid, "started": started, "pid_here": here });
        let expected = [report(6, "earlier"), report(5, "later")];
        assert_eq!(survey_in(&directory, Of::All).unwrap().reports, expected);
        drop(second);
        assert_eq!(survey_in(&directory, Of::All).unwrap().reports.len(), 1);
    }

    #[test]
    fn no_server_waits_for_the_answer_of_another() {
        let (_home, directory) = fixture();
        let both = Arc::new(std::sync::Barrier::new(2));
        let _servers = [1, 2].map(|_| {
            let both = Arc::clone(&both);
            let reply = move |_: &Peer<'_>, _: &str| {
                both.wait();
                "{}".to_owned()
            };
            directory.serve(KIND, reply).unwrap()
        });
        assert_eq!(survey_in(&directory, Of::All).unwrap().reports.len(), 2);
    }

    #[test]
    fn who_asks_about_one_server_does_not_wait_for_one_that_does_not_answer() {
        let (_home, directory) = fixture();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let end = std::sync::Mutex::new(end);
        let silent = directory.serve(KIND, move |_, _| {
            let _ = end.lock().unwrap().recv();
            "{}".to_owned()
        });
        let at =
            |point: &str| serve_in(&directory, Arc::new(Fixed(json!({ "mount_point": point }))));
        let _servers = [silent.unwrap(), at("/a").unwrap(), at("/b").unwrap()];
        let begun = Instant::now();
        let survey = survey_in(&directory, Of::Meant(&is_at(Path::new("/a")))).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        // Those that answer soon are there, too: who asks may compare.
        assert_eq!((survey.reports.len(), survey.silent.len()), (2, 0));
        drop(ends);
    }

    #[test]
    fn however_many_servers_hang_they_hold_up_the_others_once() {
        let (_home, directory) = fixture();
        directory.prepare().unwrap();
        // They take connections, as stopped processes do.
        let hung = |id| {
            let path = directory.path().join(format!("{KIND}-{id:016x}.sock"));
            std::os::unix::net::UnixListener::bind(path).unwrap()
        };
        let count = AT_ONCE * 2 + 1;
        let _hung: Vec<_> = (0..count).map(hung).collect();
        let begun = Instant::now();
        let survey = survey_in(&directory, Of::All).unwrap();
        assert!(begun.elapsed() < PATIENCE * 3 / 2, "{:?}", begun.elapsed());
        assert_eq!(survey.silent.len(), count);
        let said = no_answer(&survey.silent).unwrap();
        assert!(said.starts_with(&format!("process {} does not", std::process::id())), "{said}");
    }

    #[test]
    fn a_view_is_found_by_a_path_of_any_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a/x\xff"));
        let report = json!({ "mount_point": path.to_string_lossy() });
        assert!(is_at(path)(report.as_object().unwrap()));
        assert!(!is_at(Path::new("/a/x"))(report.as_object().unwrap()));
        assert!(!is_path(&Value::Null, path));
    }

    #[test]
    fn a_path_of_any_bytes_is_asked_for() {
        use std::os::unix::ffi::OsStrExt;
        for name in [&b"/a/b"[..], b"/a\xff/b"] {
            let path = std::ffi::OsStr::from_bytes(name).into();
            let request = Request::Why(About { path, write: false, directory: false });
            assert_eq!(serde_json::from_str::<Request>(&line(&request)).unwrap(), request);
        }
    }

    #[test]
    fn a_server_that_replies_nonsense_is_left_out() {
        let (_home, directory) = fixture();
        let replies = ["not JSON", "[]", r#"{"error":"broken"}"#];
        let _servers = replies.map(|text| directory.serve(KIND, |_, _| text.to_owned()).unwrap());
        let survey = survey_in(&directory, Of::All).unwrap();
        assert!(survey.reports.is_empty() && survey.silent.is_empty());
    }

    /// CMD of a `run` can have many sockets in the directory that it is given, and reply what it likes.
    #[test]
    fn replies_that_may_be_forged_take_little_memory_and_others_as_much_as_they_need() {
        let (_home, directory) = fixture();
        let nested = directory.nested().unwrap();
        let of_command = Directory::at(nested.path());
        let numbers = |len: usize| format!(r#"{{"pid":7,"x":[{}0]}}"#, "0,".repeat(len));
        let serve = |len: usize| {
            let reply = numbers(len);
            of_command.serve(KIND, move |_, _| reply.clone()).unwrap()
        };
        let long = serve(4 << 20);
        assert!(survey_in(&directory, Of::All).unwrap().reports.is_empty());
        drop(long);
        let _forged: Vec<_> = (0..AT_ONCE).map(|_| serve(400 << 10)).collect();
        let own = numbers(4 << 20);
        let _own = directory.serve(KIND, move |_, _| own.clone()).unwrap();
        let reports = survey_in(&directory, Of::All).unwrap().reports;
        let numbers_in = |report: &Value| report["x"].as_array().unwrap().len();
        let (own, forged): (Vec<_>, Vec<_>) =
            reports.iter().map(numbers_in).partition(|len| *len > 4 << 20);
        assert_eq!(own.len(), 1);
        assert!(forged.iter().sum::<usize>() < 2 << 20, "{forged:?}");
    }

    #[test]
    fn a_server_that_does_not_give_its_counters_is_an_error() {
        let (_home, directory) = fixture();
        let server = directory.serve(KIND, |_, _| error_reply("for\u{1b} others")).unwrap();
        let said = metrics(server.path()).unwrap_err().to_string();
        assert!(said.ends_with(r#": "for\u001b others""#), "{said}");
    }

    #[test]
    fn bad_requests_get_the_reason() {
        let (_home, directory) = fixture();
        let server = serve_in(&directory, Arc::new(Fixed(json!({ "pid": 5 })))).unwrap();
        let ask = |request: &str| tollgate_control::ask(server.path(), request).unwrap();
        assert!(ask(r#"{"command":"stop"}"#).contains("unknown variant `stop`"));
        assert!(ask("nonsense").contains("not a request"));
        assert_eq!(ask(r#"{"command":"status"}"#), r#"{"pid":5}"#);
        assert_eq!(metrics(server.path()).unwrap(), "up 1\nyes 2\n");
    }
}
