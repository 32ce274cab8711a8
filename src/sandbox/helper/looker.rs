//! The process that looks at callers, and opens what the policy is read from.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::thread::CapabilitySet;
use tollgate_view::{Callers, ProcCallers};

use super::channel::{Answer, Helper};
use crate::accounts;
use crate::files::{self, Elsewhere};

/// How long a look at a caller may take. What is not known by then counts against it.
const A_LOOK: Duration = Duration::from_secs(1);
/// How long a name, or a file, may take: either may come over the network.
const A_NAME: Duration = Duration::from_secs(10);

const EXECUTABLE: u8 = b'x';
const SYSTEM_CALL: u8 = b's';
const USER_NAMESPACE: u8 = b'n';
const PID_NAMESPACE: u8 = b'p';
const USER: u8 = b'u';
const GROUP: u8 = b'g';
const OPEN: u8 = b'o';

/// Asks that process.
#[derive(Debug)]
pub(crate) struct Looker(Helper);

/// The one of this process, if it is a server that cannot look by itself.
static OF_THIS_PROCESS: OnceLock<Arc<Looker>> = OnceLock::new();

/// Who looks for this process, if it cannot look by itself.
pub(crate) fn of_this_process() -> Option<&'static Arc<Looker>> {
    OF_THIS_PROCESS.get()
}

impl Looker {
    /// Starts the process, which opens `files` and no others. Before the first thread.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub(crate) fn start(files: Vec<PathBuf>) -> anyhow::Result<Self> {
        let keeps = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
        let prepare = || {
            let callers = ProcCallers::default();
            move |request: &[u8]| answer(&callers, &files, request)
        };
        Ok(Self(Helper::start(keeps, &[], prepare)?))
    }

    /// From now on, [`of_this_process`].
    pub(crate) fn for_this_process(self) -> Arc<Self> {
        let looker = Arc::clone(OF_THIS_PROCESS.get_or_init(|| Arc::new(self)));
        files::ask(Arc::clone(&looker) as Arc<dyn Elsewhere>);
        looker
    }

    /// Ends the process. Nothing is known from then on.
    pub(crate) fn end(&self) {
        self.0.end();
    }

    /// The bytes of an answer that is not empty.
    fn look(&self, what: u8, tid: u32) -> Option<Vec<u8>> {
        let request = [&[what][..], &tid.to_ne_bytes()].concat();
        let (bytes, _) = self.0.ask(&request, A_LOOK)?;
        (!bytes.is_empty()).then_some(bytes)
    }

    fn number(&self, what: u8, name: &str) -> Option<u32> {
        let request = [&[what][..], name.as_bytes()].concat();
        let (bytes, _) = self.0.ask(&request, A_NAME)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// Whether process `pid` is in the pid namespace of the server.
    pub(crate) fn is_in_own_pid_namespace(&self, pid: u32) -> bool {
        self.look(PID_NAMESPACE, pid).is_some()
    }
}

impl Callers for Looker {
    fn executable(&self, tid: u32) -> Option<Arc<[u8]>> {
        self.look(EXECUTABLE, tid).map(Arc::from)
    }

    fn system_call(&self, tid: u32) -> Option<Vec<u8>> {
        self.look(SYSTEM_CALL, tid)
    }

    fn is_of_this_user_namespace(&self, tid: u32) -> bool {
        self.look(USER_NAMESPACE, tid).is_some()
    }
}

impl Elsewhere for Looker {
    /// `EACCES` for a file that was not named at the start.
    fn open(&self, path: &Path) -> io::Result<File> {
        let request = [&[OPEN][..], path.as_os_str().as_bytes()].concat();
        let gone = || io::Error::other("the process that opens it does not answer");
        let (bytes, fd) = self.0.ask(&request, A_NAME).ok_or_else(gone)?;
        match (fd, bytes.try_into()) {
            (Some(fd), _) => Ok(fd.into()),
            (None, Ok(errno)) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            (None, Err(_)) => Err(gone()),
        }
    }

    fn user(&self, name: &str) -> Option<u32> {
        self.number(USER, name)
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.number(GROUP, name)
    }
}

/// In the process: empty for what is not so, or not known.
fn answer(callers: &ProcCallers, files: &[PathBuf], request: &[u8]) -> Answer {
    let Some((what, rest)) = request.split_first() else { return Answer::default() };
    let tid = || rest.try_into().map(u32::from_ne_bytes).ok();
    let yes = |so: bool| if so { vec![1] } else { Vec::new() };
    let name = std::str::from_utf8(rest).ok();
    let id = |id: Option<u32>| id.map_or_else(Vec::new, |id| id.to_ne_bytes().to_vec());
    let bytes = match *what {
        EXECUTABLE => tid().and_then(|tid| callers.executable(tid)).map(|path| path.to_vec()),
        SYSTEM_CALL => tid().and_then(|tid| callers.system_call(tid)),
        USER_NAMESPACE => tid().map(|tid| yes(callers.is_of_this_user_namespace(tid))),
        PID_NAMESPACE => tid().map(|pid| yes(is_of_this_pid_namespace(pid))),
        USER => name.map(|name| id(accounts::user(name))),
        GROUP => name.map(|name| id(accounts::group(name))),
        OPEN => return open(files, Path::new(OsStr::from_bytes(rest))),
        _ => None,
    };
    (bytes.unwrap_or_default(), None)
}

fn is_of_this_pid_namespace(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let theirs = namespace(&pid.to_string());
    theirs.is_some() && theirs == namespace("self")
}

fn open(files: &[PathBuf], path: &Path) -> Answer {
    let opened = if files.iter().any(|file| file == path) {
        // Opening a FIFO would wait for a writer.
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
    } else {
        Err(io::Error::from_raw_os_error(libc::EACCES))
    };
    match opened {
        Ok(file) => (vec![0], Some(file.into())),
        Err(error) => (error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes().to_vec(), None),
    }
}
