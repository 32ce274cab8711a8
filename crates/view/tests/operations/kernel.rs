//! The kernel's side of a view, played by a test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use tempfile::TempDir;
use tollgate_fuse::abi::{
    AttrOut, CreateIn, EntryOut, FuseAttr, GetattrIn, InHeader, LinkIn, MkdirIn, OpenIn, OpenOut,
    ReadIn, ReleaseIn, Rename2In, SetattrIn, SizeOut, WriteIn, opcode,
};
use tollgate_fuse::memory::{self, Kernel, request};
use tollgate_fuse::{InitFlags, OpenReply, Running, Session};
use tollgate_policy::Policy;
use tollgate_view::{Config, Counts, View, WatchMode};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Longest wait for a reply: one about a tree of 13,000 levels takes seconds, and many times that on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const ROOT: u64 = 1;

/// A view of a temporary directory, with a test in place of the kernel.
pub(crate) struct Played {
    kernel: Kernel,
    running: Option<Running>,
    view: Arc<View>,
    dir: TempDir,
    unique: AtomicU64,
}

/// What an open returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    pub(crate) node: u64,
    pub(crate) number: u64,
    pub(crate) flags: OpenReply,
    pub(crate) backing: u32,
}

impl Handle {
    pub(crate) fn is_passthrough(&self) -> bool {
        self.flags.contains(OpenReply::PASSTHROUGH)
    }
}

impl Played {
    /// A view of an empty directory.
    pub(crate) fn new(policy: &str) -> Self {
        Self::with(policy, &[])
    }

    /// A view of a directory with `files`, in directories that are made as needed.
    pub(crate) fn with(policy: &str, files: &[(&str, &str)]) -> Self {
        Self::configured(policy, files, InitFlags::all(), |config| config)
    }

    /// The same with what the kernel offers and the view's settings.
    pub(crate) fn configured(
        policy: &str,
        files: &[(&str, &str)],
        offered: InitFlags,
        change: impl FnOnce(Config) -> Config,
    ) -> Self {
        Self::served_by(1, policy, files, offered, change)
    }

    /// The same with this many workers.
    pub(crate) fn served_by(
        workers: usize,
        policy: &str,
        files: &[(&str, &str)],
        offered: InitFlags,
        change: impl FnOnce(Config) -> Config,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let policy = Arc::new(Policy::parse(policy, "test.toml").unwrap());
        let source = std::fs::File::open(dir.path()).unwrap();
        let config = change(Config { policy, watch: WatchMode::Off, ..Config::default() });
        let view = View::open(source.into(), config).unwrap();
        let (transport, kernel) = memory::pair();
        kernel.send_init(45, offered).unwrap();
        let session = Session::with_transport(
            transport,
            Arc::clone(&view),
            view.session_config(Some(workers)),
        );
        let running = Some(session.start().unwrap());
        let (header, _) = kernel.reply(PATIENCE).expect("a reply to INIT");
        assert_eq!(header.error, 0);
        Self { kernel, running, view, dir, unique: AtomicU64::new(2) }
    }

    /// `path` in the lower directory.
    pub(crate) fn below(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn lower(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn counts(&self) -> Counts {
        self.view.snapshot().counts
    }

    /// Backing files that are registered.
    pub(crate) fn backings(&self) -> usize {
        self.kernel.backings()
    }

    fn request(&self, code: u32, node: u64, args: &[&[u8]]) -> (u64, Vec<u8>) {
        let unique = self.unique.fetch_add(2, Ordering::Relaxed) + 2;
        let mut bytes = request(code, unique, node, args);
        let (header, _) = InHeader::mut_from_prefix(&mut bytes).unwrap();
        // The caller is this test, so that nobody else's identity is needed.
        header.uid = rustix::process::geteuid().as_raw();
        header.gid = rustix::process::getegid().as_raw();
        header.pid = std::process::id();
        (unique, bytes)
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(&self, code: u32, node: u64, args: &[&[u8]]) -> Result<Vec<u8>, Errno> {
        let sent = self.send(code, node, args);
        let (unique, answer) = self.answer();
        assert_eq!(unique, sent);
        answer
    }

    /// Sends a request without waiting for its reply; its number.
    pub(crate) fn send(&self, code: u32, node: u64, args: &[&[u8]]) -> u64 {
        let (unique, bytes) = self.request(code, node, args);
        self.kernel.send(&bytes).unwrap();
        unique
    }

    /// The next reply, and the number of its request.
    pub(crate) fn answer(&self) -> (u64, Result<Vec<u8>, Errno>) {
        let (header, body) = self.kernel.reply(PATIENCE).expect("a reply");
        let answer = match header.error {
            0 => Ok(body),
            error => Err(Errno::from_raw_os_error(-error)),
        };
        (header.unique, answer)
    }

    /// Ends the session while requests may wait.
    pub(crate) fn end(mut self) {
        self.kernel.unmount();
        self.running.take().expect("it runs").wait().unwrap();
    }

    /// The same for a reply of one structure.
    pub(crate) fn ask<T: FromBytes>(
        &self,
        code: u32,
        node: u64,
        args: &[&[u8]],
    ) -> Result<T, Errno> {
        let body = self.call(code, node, args)?;
        Ok(T::read_from_prefix(&body).expect("a whole reply").0)
    }

    /// Sends a request that has no reply.
    pub(crate) fn tell(&self, code: u32, node: u64, args: &impl Bytes) {
        let (_, bytes) = self.request(code, node, &[args.as_bytes()]);
        self.kernel.send(&bytes).unwrap();
        // Requests are handled in turn by the one worker: a further one makes sure it was.
        self.attributes(ROOT).unwrap();
    }

    /// LOOKUP; `None` for a negative entry.
    pub(crate) fn lookup_in(&self, parent: u64, name: &str) -> Result<Option<EntryOut>, Errno> {
        let entry: EntryOut = self.ask(opcode::LOOKUP, parent, &[c_string(name).as_slice()])?;
        Ok((entry.nodeid != 0).then_some(entry))
    }

    /// LOOKUP of each component; `None` if one does not exist.
    pub(crate) fn lookup(&self, path: &str) -> Option<EntryOut> {
        let mut found = None;
        for name in path.split('/') {
            let parent = found.map_or(ROOT, |entry: EntryOut| entry.nodeid);
            found = Some(self.lookup_in(parent, name).unwrap()?);
        }
        found
    }

    #[track_caller]
    pub(crate) fn node(&self, path: &str) -> u64 {
        if path.is_empty() { ROOT } else { self.lookup(path).expect("the path exists").nodeid }
    }

    pub(crate) fn attributes(&self, node: u64) -> Result<FuseAttr, Errno> {
        let args = GetattrIn::default();
        self.ask(opcode::GETATTR, node, &[args.as_bytes()]).map(|out: AttrOut| out.attr)
    }

    pub(crate) fn set_size(&self, path: &str, size: u64) -> Result<FuseAttr, Errno> {
        let args = SetattrIn { valid: 1 << 3, size, ..SetattrIn::default() };
        self.set(path, &args)
    }

    pub(crate) fn set_mode(&self, path: &str, mode: u32) -> Result<FuseAttr, Errno> {
        self.set(path, &SetattrIn { valid: 1, mode, ..SetattrIn::default() })
    }

    fn set(&self, path: &str, args: &SetattrIn) -> Result<FuseAttr, Errno> {
        let out: AttrOut = self.ask(opcode::SETATTR, self.node(path), &[args.as_bytes()])?;
        Ok(out.attr)
    }

    pub(crate) fn open(&self, path: &str, flags: i32) -> Result<Handle, Errno> {
        self.open_node(self.node(path), flags)
    }

    pub(crate) fn open_node(&self, node: u64, flags: i32) -> Result<Handle, Errno> {
        let args = OpenIn { flags: flags.cast_unsigned(), open_flags: 0 };
        let out: OpenOut = self.ask(opcode::OPEN, node, &[args.as_bytes()])?;
        Ok(handle(node, &out))
    }

    /// Opens, asserts that it works, and closes again.
    #[track_caller]
    pub(crate) fn opens(&self, path: &str, flags: i32) -> Handle {
        let handle = self.open(path, flags).unwrap();
        self.release(handle);
        handle
    }

    /// CREATE at `path`, in a directory that exists.
    pub(crate) fn create(&self, path: &str, flags: i32) -> Result<Handle, Errno> {
        let (parent, name) = self.split(path);
        let flags = flags.cast_unsigned();
        let args = CreateIn { flags, mode: 0o100_644, umask: 0o022, open_flags: 0 };
        let body =
            self.call(opcode::CREATE, parent, &[args.as_bytes(), c_string(name).as_slice()])?;
        let (entry, rest) = EntryOut::read_from_prefix(&body).unwrap();
        Ok(handle(entry.nodeid, &OpenOut::read_from_prefix(rest).unwrap().0))
    }

    pub(crate) fn release(&self, handle: Handle) {
        let args = ReleaseIn { fh: handle.number, ..ReleaseIn::default() };
        self.call(opcode::RELEASE, handle.node, &[args.as_bytes()]).unwrap();
    }

    pub(crate) fn read(&self, handle: Handle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let args = ReadIn { fh: handle.number, offset, size, ..ReadIn::default() };
        self.call(opcode::READ, handle.node, &[args.as_bytes()])
    }

    pub(crate) fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let size = u32::try_from(data.len()).unwrap();
        let args = WriteIn { fh: handle.number, offset, size, ..WriteIn::default() };
        let out: SizeOut = self.ask(opcode::WRITE, handle.node, &[args.as_bytes(), data])?;
        Ok(out.size)
    }

    pub(crate) fn mkdir(&self, path: &str) -> Result<EntryOut, Errno> {
        let (parent, name) = self.split(path);
        let args = MkdirIn { mode: 0o755, umask: 0o022 };
        self.ask(opcode::MKDIR, parent, &[args.as_bytes(), c_string(name).as_slice()])
    }

    pub(crate) fn unlink(&self, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.split(path);
        self.call(opcode::UNLINK, parent, &[c_string(name).as_slice()]).map(drop)
    }

    pub(crate) fn rmdir(&self, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.split(path);
        self.call(opcode::RMDIR, parent, &[c_string(name).as_slice()]).map(drop)
    }

    /// RENAME2 with `RENAME_*` bits.
    pub(crate) fn rename(&self, from: &str, to: &str, flags: u32) -> Result<(), Errno> {
        let ((parent, name), (newdir, new_name)) = (self.split(from), self.split(to));
        let args = Rename2In { newdir, flags, padding: 0 };
        let names = [c_string(name), c_string(new_name)].concat();
        self.call(opcode::RENAME2, parent, &[args.as_bytes(), names.as_slice()]).map(drop)
    }

    pub(crate) fn link(&self, from: &str, to: &str) -> Result<EntryOut, Errno> {
        self.link_node(self.node(from), to)
    }

    pub(crate) fn link_node(&self, oldnodeid: u64, to: &str) -> Result<EntryOut, Errno> {
        let (parent, name) = self.split(to);
        let args = LinkIn { oldnodeid };
        self.ask(opcode::LINK, parent, &[args.as_bytes(), c_string(name).as_slice()])
    }

    /// The node of the directory above, and the name.
    pub(crate) fn split<'p>(&self, path: &'p str) -> (u64, &'p str) {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.node(dir), name),
            None => (ROOT, path),
        }
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.kernel.unmount();
        if let Some(running) = self.running.take() {
            let ended = running.wait();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// A structure of the wire.
pub(crate) trait Bytes: IntoBytes + Immutable {}

impl<T: IntoBytes + Immutable> Bytes for T {}

/// A name as it travels: with its NUL.
pub(crate) fn c_string(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

fn handle(node: u64, out: &OpenOut) -> Handle {
    let flags = OpenReply::from_bits(out.open_flags).expect("flags that exist");
    Handle { node, number: out.fh, flags, backing: out.backing_id }
}
