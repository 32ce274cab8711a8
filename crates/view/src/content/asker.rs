//! Who asked for what is being done with the bytes of a file: for the record of what goes wrong with
//! them, which is found out far below.

use std::cell::Cell;

use tollgate_fuse::Caller;

/// Where nobody waits for what is done.
const NOBODY: Caller = Caller { uid: 0, gid: 0, pid: 0 };

thread_local!(static ASKER: Cell<Caller> = const { Cell::new(NOBODY) });

/// Runs `act`, which `caller` asked for.
pub(crate) fn asked_by<T>(caller: Caller, act: impl FnOnce() -> T) -> T {
    let _before = Before(ASKER.replace(caller));
    act()
}

/// Who asked for what this thread does.
pub(super) fn asker() -> Caller {
    ASKER.get()
}

/// Put back in the end, also by a panic: the thread goes on.
struct Before(Caller);

impl Drop for Before {
    fn drop(&mut self) {
        ASKER.set(self.0);
    }
}
