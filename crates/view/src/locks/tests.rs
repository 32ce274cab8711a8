//! What owners have locked, as the lower file shows it.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tempfile::NamedTempFile;
use tollgate_fuse::FileHandle;

use super::description::{Class, Description, Wanted};
use super::file::{Ask, FileLocks, InTheWay, OwnerId, Source};
use super::range::{Kind, Range};
use crate::budget::Budget;
use crate::caller::{Callers, ProcCallers};
use crate::shares::{Shares, Taken};

/// A lower file.
struct Lower {
    file: NamedTempFile,
    budget: Budget,
    shares: Arc<Shares>,
    callers: ProcCallers,
}

impl Lower {
    fn new() -> Self {
        Self {
            file: NamedTempFile::new().unwrap(),
            budget: Budget::new(100),
            shares: Shares::new("blocks", 100),
            callers: ProcCallers::default(),
        }
    }

    fn description(&self, writable: bool) -> Description {
        let path = self.file.path();
        let file = File::options().read(true).write(writable).open(path).unwrap();
        Description::new(file.into(), writable, self.budget.hold_for_lock(0).unwrap())
    }

    /// A handle that is opened for reading, and if `writable` for writing.
    fn handle(&self, writable: bool) -> Handle<'_> {
        Handle { lower: self, writable, meanwhile: Cell::new(None) }
    }
}

/// A handle through which a lock is asked for.
struct Handle<'a> {
    lower: &'a Lower,
    writable: bool,
    /// What another thread does while the lower file is opened.
    meanwhile: Cell<Option<Box<dyn FnOnce() + 'a>>>,
}

impl<'a> Handle<'a> {
    fn meanwhile(self, other: impl FnOnce() + 'a) -> Self {
        self.meanwhile.set(Some(Box::new(other)));
        self
    }
}

impl Source for Handle<'_> {
    fn open(&self, writable: bool) -> Result<Description, Errno> {
        if let Some(other) = self.meanwhile.take() {
            other();
        }
        Ok(self.lower.description(writable))
    }

    fn room(&self) -> Taken {
        self.lower.shares.none(0)
    }

    fn callers(&self) -> &dyn Callers {
        &self.lower.callers
    }

    fn is_writable(&self) -> bool {
        self.writable
    }
}

const READ: Option<Kind> = Some(Kind::Read);
const WRITE: Option<Kind> = Some(Kind::Write);

/// What `owner` asks for, through the handle of the same number.
fn ask(owner: u64, class: Class, range: Range, kind: Option<Kind>) -> Ask {
    Ask {
        id: OwnerId { class, owner },
        wanted: Wanted { class, range, kind },
        handle: FileHandle(owner),
        pid: 1,
        tid: 0,
        uid: 0,
    }
}

fn whole(owner: u64, kind: Option<Kind>) -> Ask {
    ask(owner, Class::Whole, Range::ALL, kind)
}

fn byte(owner: u64, at: u64, kind: Option<Kind>) -> Ask {
    ask(owner, Class::Ranges, Range::new(at, at).unwrap(), kind)
}

/// What is in the way may end between two looks at it: then the second one takes the lock.
#[test]
fn a_lock_whose_holder_closes_after_the_refusal_is_taken() {
    let lower = Lower::new();
    let handle = lower.handle(true);
    let locks = FileLocks::default();
    let ask = |owner| whole(owner, WRITE);
    assert_eq!(locks.set(&ask(1), &handle), Ok(()));
    assert_eq!(locks.set(&ask(2), &handle), Err(Errno::AGAIN));
    assert_eq!(locks.try_again(&ask(2)), Err(InTheWay::MayBeClosing));
    locks.released(FileHandle(1));
    assert_eq!(locks.try_again(&ask(2)), Ok(()));
    locks.wait_ends(ask(2).id);
    locks.released(FileHandle(2));
    let outside = File::open(lower.file.path()).unwrap();
    rustix::fs::flock(&outside, FlockOperation::LockExclusive).unwrap();
    assert_eq!(locks.set(&ask(3), &handle), Err(Errno::AGAIN));
    assert_eq!(locks.try_again(&ask(3)), Err(InTheWay::Stays(Errno::AGAIN)));
}

/// Two threads of one owner lock for the first time, and both open the lower file.
#[test]
fn first_locks_of_one_owner_do_not_exclude_each_other() {
    for (there, wanted) in [(WRITE, WRITE), (WRITE, READ), (READ, WRITE), (READ, READ)] {
        for other in [whole(1, there), byte(1, 0, there)] {
            let lower = Lower::new();
            let (locks, outside) = (FileLocks::default(), lower.description(true));
            let first = || assert_eq!(locks.set(&other, &lower.handle(true)), Ok(()));
            let ask = match other.id.class {
                Class::Whole => whole(1, wanted),
                Class::Ranges => byte(1, 1, wanted),
            };
            let handle = lower.handle(wanted == WRITE).meanwhile(first);
            assert_eq!(locks.set(&ask, &handle), Ok(()), "{ask:?} beside {other:?}");
            let [everything, all_bytes] = [whole(2, WRITE).wanted, ask_all(WRITE)];
            let (own, apart) = match other.id.class {
                Class::Whole => (everything, all_bytes),
                Class::Ranges => (all_bytes, everything),
            };
            assert_eq!(outside.set(&own), Err(Errno::AGAIN), "{ask:?} beside {other:?}");
            assert_eq!(outside.set(&apart), Ok(()), "{ask:?} beside {other:?}");
            for ask in [ask, other] {
                assert_eq!(locks.set(&Ask { wanted: ask.wanted.undone(), ..ask }, &handle), Ok(()));
            }
            assert_eq!(outside.set(&own), Ok(()), "{ask:?} beside {other:?}");
        }
    }
}

fn ask_all(kind: Option<Kind>) -> Wanted {
    Wanted { class: Class::Ranges, range: Range::ALL, kind }
}

/// Who has waited has the lock below. Where there is no room to note it, it is given up again, and what the
/// owner had locked there before stays.
#[test]
fn a_lock_that_was_waited_for_and_is_refused_is_not_left_below() {
    let lower = Lower { shares: Shares::new("blocks", 1), ..Lower::new() };
    let (locks, outside) = (FileLocks::default(), lower.description(true));
    let handle = lower.handle(true);
    let range = |start, end| Range::new(start, end).unwrap();
    let ranges = |owner, range, kind| ask(owner, Class::Ranges, range, kind);
    let (read, write) = (range(10, 19), range(30, 39));
    assert_eq!(locks.set(&ranges(1, read, READ), &handle), Ok(()));
    assert_eq!(locks.set(&ranges(1, write, WRITE), &handle), Ok(()));
    assert_eq!(outside.set(&byte(2, 50, WRITE).wanted), Ok(()));
    let waited = ranges(1, range(0, 50), WRITE);
    assert_eq!(locks.set(&waited, &handle), Err(Errno::AGAIN));
    let mut others = (100..1_000).step_by(2).map(|at| locks.set(&byte(1, at, READ), &handle));
    assert_eq!(others.find(Result::is_err), Some(Err(Errno::NOLCK)), "there is room for few");
    assert_eq!(outside.set(&byte(2, 50, None).wanted), Ok(()));
    assert_eq!(locks.description(waited.id).unwrap().wait(&waited.wanted), Ok(()));
    assert_eq!(locks.set_waited(&waited), Err(Errno::NOLCK));
    locks.wait_ends(waited.id);
    for free in [range(0, 9), range(20, 29), range(40, 99)] {
        assert_eq!(outside.set(&ranges(2, free, WRITE).wanted), Ok(()), "{free:?}");
    }
    assert_eq!(outside.set(&ranges(2, read, READ).wanted), Ok(()));
    assert_eq!(outside.set(&ranges(2, read, WRITE).wanted), Err(Errno::AGAIN));
    assert_eq!(outside.set(&ranges(2, write, READ).wanted), Err(Errno::AGAIN));
}

/// A thread waits to write while another one of its owner begins to read, through a handle that
/// does not write.
#[test]
fn who_waits_to_write_keeps_a_description_that_serves() {
    let lower = Lower::new();
    let (locks, outside) = (FileLocks::default(), lower.description(true));
    let blocked = byte(1, 0, WRITE);
    assert_eq!(outside.set(&blocked.wanted), Ok(()));
    let first = || assert_eq!(locks.set(&blocked, &lower.handle(true)), Err(Errno::AGAIN));
    let reading = lower.handle(false).meanwhile(first);
    assert_eq!(locks.set(&byte(1, 1, READ), &reading), Ok(()));
    assert_eq!(outside.set(&blocked.wanted.undone()), Ok(()));
    assert_eq!(locks.try_again(&blocked), Ok(()));
    locks.wait_ends(blocked.id);
}

/// A thread that waits keeps the description open on which its owner locked for reading. Once the
/// owner has gone over to another one, nothing is locked on it any more.
#[test]
fn nothing_is_locked_on_a_description_that_an_owner_has_left() {
    let lower = Lower::new();
    let (locks, outside) = (FileLocks::default(), lower.description(true));
    assert_eq!(outside.set(&byte(2, 9, WRITE).wanted), Ok(()));
    let (reading, writing) = (lower.handle(false), lower.handle(true));
    assert_eq!(locks.set(&byte(1, 0, READ), &reading), Ok(()));
    assert_eq!(locks.set(&byte(1, 1, READ), &reading), Ok(()));
    let blocked = byte(1, 9, READ);
    assert_eq!(locks.set(&blocked, &reading), Err(Errno::AGAIN));
    let left = locks.description(blocked.id).unwrap();
    assert_eq!(locks.set(&byte(1, 0, WRITE), &writing), Ok(()));
    assert_eq!(outside.set(&byte(2, 0, READ).wanted), Err(Errno::AGAIN));
    assert_eq!(outside.set(&byte(2, 1, WRITE).wanted), Err(Errno::AGAIN));
    assert_eq!(locks.set(&byte(1, 0, None), &writing), Ok(()));
    assert_eq!(outside.set(&byte(2, 0, WRITE).wanted), Ok(()));
    assert!(locks.has_left(blocked.id), "whoever waits on it is to leave it, too");
    drop(left);
    assert!(!locks.has_left(blocked.id));
    locks.wait_ends(blocked.id);
}
