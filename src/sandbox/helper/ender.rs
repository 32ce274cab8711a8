//! The process that ends the connections of views when their server was killed, for a server whose
//! views show in another mount namespace.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write as _};
use std::rc::Rc;
use std::time::Duration;

use rustix::thread::CapabilitySet;

use super::channel::{Answer, Helper};

/// How long the kernel may take to open a file of fusectl.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks that process. It ends when this is dropped, and the connections stay then.
#[derive(Debug)]
pub(crate) struct Ender(Helper);

impl Ender {
    /// Starts the process. Before the first thread.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let helper = Helper::start_with_end(CapabilitySet::empty(), &[], || {
            let files = Rc::new(RefCell::new(Vec::new()));
            let opened = Rc::clone(&files);
            let answer = move |request: &[u8]| {
                let number = request.try_into().map(u32::from_ne_bytes);
                opened.borrow_mut().extend(number.ok().and_then(|it| abort_file(it).ok()));
                Answer::default()
            };
            (answer, move || files.take().into_iter().for_each(end))
        })?;
        Ok(Self(helper))
    }

    /// From now on, the connection of this number ends with the server, while it is known to be that
    /// of a view.
    pub(crate) fn watch(&self, connection: u32) {
        // Without an answer the kernel ends the connection, unless a thread of the server is stuck.
        let _ = self.0.ask(&connection.to_ne_bytes(), PATIENCE);
    }
}

fn end(mut file: File) {
    // One that is at its end already stays as it is.
    let _ = file.write_all(b"1");
}

/// The file of fusectl that ends a connection. It has no effect on a later one of the same number.
pub(super) fn abort_file(connection: u32) -> io::Result<File> {
    File::options().write(true).open(format!("/sys/fs/fuse/connections/{connection}/abort"))
}
