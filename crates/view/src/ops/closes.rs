//! Requests that only a file's missing close, or pages that are to be written back, stand in the way of: they
//! wait for it, off the threads that serve ([`crate::pauses`]).

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use tollgate_fuse::{Attributes, Connection, Name, NodeId, Opened, Reply, Request, SetAttr, args};

use super::rename::Renamed;
use super::stricter::is_open_freely;
use crate::ops::access::Access;
use crate::patience::Patience;
use crate::pauses::Waited;
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

/// A program whose process has just ended may not have been reported as closed yet: so long who
/// would empty it waits for that,
const ENDING: Duration = Duration::from_millis(50);

/// and, where a later request can overtake the report, until it must have been served, for at most
/// this long.
const ENDING_MOST: Duration = Duration::from_millis(250);

/// A file that a program closed just before it renames it to a name with a stricter mode is waited
/// for this long at most.
const CLOSING: Duration = Duration::from_millis(50);

/// What was stored through mappings is written back within this time, or counts as stored later.
const WRITING_BACK: Duration = Duration::from_secs(2);

impl View {
    pub(crate) fn answer_open(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: args::Open,
        reply: Reply<'_, Opened>,
    ) {
        let Some(node) = self.executed_and_emptied(id, args.flags) else {
            return self.open_and_answer(req, id, args, reply);
        };
        let closes = self.connection.get().map(Connection::passing);
        let patience = Patience::begin(ENDING, ENDING_MOST, closes);
        let is_over = move || !node.io.lock().is_executed() || patience.is_over();
        self.after(req, reply, is_over, move |view, req, waited, reply| match waited {
            Waited::Enough => view.open_and_answer(req, id, args, reply),
            Waited::Interrupted | Waited::Ended => {
                reply.error(Errno::INTR);
            }
        });
    }

    /// The file, if it is executed and this open would empty it. The kernel keeps whoever opens it
    /// to write from it, and asks nobody.
    fn executed_and_emptied(&self, id: NodeId, flags: u32) -> Option<Arc<Node>> {
        let node = Access::new(flags).only_empties().then(|| self.node(id).ok())??;
        let is_executed = node.io.lock().is_executed();
        is_executed.then_some(node)
    }

    fn open_and_answer(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: args::Open,
        reply: Reply<'_, Opened>,
    ) {
        let result = self.do_open(req, id, args.flags, args.kill_suidgid);
        let handle = result.as_ref().ok().map(|opened| opened.handle);
        if !reply.send(result)
            && let Some(handle) = handle
        {
            self.do_release(req, id, handle);
        }
    }

    pub(crate) fn answer_rename(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Rename<'_>,
        reply: Reply<'_, ()>,
    ) {
        self.count(req, Count::change_names);
        let args::Rename { name, new_parent, new_name, flags } = args;
        let (from, to) = ((parent, name), (new_parent, new_name));
        let node = match self.do_rename(req, from, to, flags, true) {
            Ok(Renamed::AfterClose(node)) => node,
            done => {
                reply.send(done.map(drop));
                return;
            }
        };
        let patience = Patience::begin(CLOSING, CLOSING, None);
        let is_over = move || !is_open_freely(&node) || patience.is_over();
        let (name, new_name) = (name.as_c_str().to_owned(), new_name.as_c_str().to_owned());
        self.after(req, reply, is_over, move |view, req, waited, reply| {
            // A signal ends the wait alone: rename(2) is not ended by one.
            let result = match waited {
                Waited::Ended => Err(Errno::INTR),
                Waited::Enough | Waited::Interrupted => {
                    view.rename_at_last(req, (parent, &name), (new_parent, &new_name), flags)
                }
            };
            reply.send(result);
        });
    }

    fn rename_at_last(
        &self,
        req: &Request<'_>,
        (parent, name): (NodeId, &CStr),
        (new_parent, new_name): (NodeId, &CStr),
        flags: u32,
    ) -> Result<(), Errno> {
        let (from, to) = ((parent, Name::new(name)?), (new_parent, Name::new(new_name)?));
        self.do_rename(req, from, to, flags, false).map(drop)
    }

    /// Sets attributes: times once the kernel has written back what was stored through mappings before, which
    /// would set them again later.
    pub(crate) fn answer_setattr(
        &self,
        req: &Request<'_>,
        id: NodeId,
        set: &SetAttr,
        reply: Reply<'_, Attributes>,
    ) {
        let sets_times = set.atime.is_some() || set.mtime.is_some();
        let mapped = self.node(id).ok().filter(|_| sets_times);
        let mapped = mapped.and_then(|node| node.io.lock().mapped().cloned());
        if !mapped.is_some_and(|pages| pages.may_have_stores()) {
            reply.send(self.do_setattr(req, id, set));
            return;
        }
        let written = Arc::new(AtomicBool::new(false));
        let patience = Patience::begin(WRITING_BACK, WRITING_BACK, None);
        let is_over = {
            let written = Arc::clone(&written);
            move || written.load(Ordering::Acquire) || patience.is_over()
        };
        self.dropper.drop_all(id, move || written.store(true, Ordering::Release));
        let set = *set;
        self.after(req, reply, is_over, move |view, req, _, reply| {
            reply.send(view.do_setattr(req, id, &set));
        });
    }

    /// Has `serve` run on a thread of its own, once `is_over` says so or the caller got a signal; or
    /// at once and here, where no more requests may wait.
    fn after<T: ?Sized + 'static>(
        &self,
        req: &Request<'_>,
        reply: Reply<'_, T>,
        is_over: impl Fn() -> bool + Send + 'static,
        serve: impl FnOnce(&Self, &Request<'_>, Waited, Reply<'_, T>) + Send + 'static,
    ) {
        let (pause, view) = (self.pauses.begin(req.caller().uid), self.own.upgrade());
        let (Some(pause), Some(view)) = (pause, view) else {
            return serve(self, req, Waited::Enough, reply);
        };
        let kept = req.keep();
        // Taken back from a thread that does not start.
        let work = Arc::new(Mutex::new(Some((reply.detach(), serve))));
        let given = Arc::clone(&work);
        let body = move || {
            let Some((reply, serve)) = given.lock().take() else { return };
            view.prepare_pausing_thread();
            let waited = pause.wait(is_over, || reply.interrupted());
            serve(&view, &kept.request(), waited, reply);
            // The session's end waits for the pause: the view must not outlive that here.
            drop(view);
            drop(pause);
        };
        let thread = std::thread::Builder::new().name("tollgate-pause".to_owned());
        if let Err(error) = thread.spawn(body) {
            tracing::warn!(%error, "no thread for a request that waits for a close");
            if let Some((reply, serve)) = work.lock().take() {
                serve(self, req, Waited::Enough, reply);
            }
        }
    }

    fn prepare_pausing_thread(&self) {
        tollgate_fuse::blocking::prepare_thread();
        if let Err(error) = self.powers.prepare_thread() {
            tracing::error!(%error, "a thread shares its umask with others");
        }
    }
}
