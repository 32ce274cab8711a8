//! Small files whose content the kernel gets before they are opened.
//!
//! The first OPEN of a small file takes three times as long as a later one, because the server reads
//! the file meanwhile (see [`crate::small`]). A program that reads a tree from one end to the other
//! (`grep -r`, `tar`) opens its files in the order in which directories list them. Once that is seen,
//! a thread reads the files that follow, on a CPU that would sit idle while the program waits for the
//! server.
//!
//! How many files it reads before any of them is opened grows as long as they are opened
//! (`pace.rs`), as a kernel's read-ahead does within a file. A program that opens them faster than the
//! thread reads would wait for each: the thread leaves some of them to the OPEN. Who opens files in
//! another order, as a compiler does, wakes the thread ever more rarely.
//!
//! Nothing is promised to the program by it: each OPEN is decided and compared with the lower file as
//! ever, and takes what was read ahead if it is still the same.

mod mail;
mod pace;
mod walk;

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tollgate_fuse::NodeId;

use crate::sync::{JoinHandle, spawn};
use crate::table::Node;
use mail::{Mail, News};
use pace::{Pace, overtakes};
pub(crate) use walk::Tree;
use walk::Walk;

/// Files that the walk passed lately, of which an OPEN may still come.
const PASSED: usize = 64;
/// Files that may lie between one that was opened and the next that is: large ones, and those that
/// a program leaves out.
const SKIPPED: usize = 16;
/// Files that are looked at in turn without one that is worth reading: all that follows may have
/// been read already.
const IN_VAIN: usize = 256;

/// What becomes of the next file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Read,
    /// Who opens it comes before it could be read, and would wait.
    Leave,
}

/// Hands the file of this name in this directory to the kernel. Returns which file that is, and
/// whether it was handed over; `None` for one that cannot be opened as it is known.
pub(crate) type HandOver = Box<dyn Fn(&Arc<Node>, &CStr, Next) -> Option<(NodeId, bool)> + Send>;

/// Owns the thread.
#[derive(Default)]
pub(crate) struct Ahead {
    mail: Arc<Mail<Node>>,
    thread: Mutex<Option<JoinHandle>>,
}

impl Ahead {
    /// From now on files of `tree` are read ahead.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(&self, tree: Tree, hand_over: HandOver) -> std::io::Result<()> {
        let mail = Arc::clone(&self.mail);
        let thread = spawn("tollgate-ahead", move || Reader::new(mail, tree, hand_over).run())?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// `node` was opened, and had to be read then.
    pub(crate) fn missed(&self, node: &Arc<Node>) {
        self.mail.missed(node);
    }

    /// A file that was read ahead is opened.
    pub(crate) fn used(&self) {
        self.mail.used();
    }

    /// Ends the thread. Not to be called by it.
    pub(crate) fn stop(&self) {
        self.mail.stop();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reads files ahead panicked");
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // For a session that did not end. The thread may be the one that lets go of the view last,
        // so nobody waits for it here.
        self.mail.stop();
    }
}

/// What the thread knows.
struct Reader {
    mail: Arc<Mail<Node>>,
    tree: Tree,
    hand_over: HandOver,
    pace: Pace,
    walk: Option<Walk>,
    passed: VecDeque<NodeId>,
}

/// Why no further file is read.
#[derive(PartialEq, Eq)]
enum Filled {
    /// So many were read that have not been opened.
    Full,
    /// No file follows, as far as is known, or something else is to be done first.
    Stopped,
}

impl Reader {
    fn new(mail: Arc<Mail<Node>>, tree: Tree, hand_over: HandOver) -> Self {
        let (pace, walk, passed) = (Pace::default(), None, VecDeque::new());
        Self { mail, tree, hand_over, pace, walk, passed }
    }

    fn run(mut self) {
        let mut room_at = None;
        loop {
            let news = self.mail.wait(room_at);
            if !self.pace.goes_on(Instant::now()) {
                self.mail.give_up();
            }
            match news {
                News::Stop => return,
                News::Missed(node) => self.follow(&node),
                News::Room => {}
            }
            let full = self.fill() == Filled::Full;
            room_at = self.pace.low().filter(|_| full);
        }
    }

    /// `node` was opened before it was read ahead.
    fn follow(&mut self, node: &Arc<Node>) {
        if self.passed.contains(&node.id) {
            return;
        }
        let follows =
            self.walk.as_mut().is_some_and(|walk| walk.advance_to(&self.tree, node, SKIPPED));
        if follows {
            self.mail.pass_over(self.pace.in_order());
            return;
        }
        self.mail.pass_over(self.pace.strays());
        self.mail.give_up();
        self.walk = Walk::after(&self.tree, node);
    }

    /// Reads as many files as the pace allows.
    fn fill(&mut self) -> Filled {
        let Some(walk) = &mut self.walk else { return Filled::Stopped };
        let (mut in_vain, mut before) = (0, None);
        while in_vain < IN_VAIN
            && let Some(outstanding) = self.mail.outstanding()
        {
            if !self.pace.may_read(outstanding) {
                return Filled::Full;
            }
            let Some(file) = walk.next(&self.tree) else { return Filled::Stopped };
            let next = if overtakes(before, outstanding) { Next::Leave } else { Next::Read };
            let Some((node, is_read)) = (self.hand_over)(&file.dir, &file.name, next) else {
                // The kernel may know it once others were opened.
                walk.give_back(file);
                return Filled::Stopped;
            };
            if self.passed.len() >= PASSED {
                self.passed.pop_front();
            }
            self.passed.push_back(node);
            before = is_read.then_some(outstanding);
            if is_read {
                in_vain = 0;
                self.pace.read();
                self.mail.is_read();
            } else {
                in_vain += 1;
            }
        }
        Filled::Stopped
    }
}
