//! Locks of `parking_lot`, and threads of the standard library; or those of the model checker under
//! `--cfg loom`. For what hands files and parts of replies from one thread to another: all of that is
//! modelled.
//!
//! In a model no time passes: what is due later never comes by itself, and who waits until then is
//! woken by others alone.

#[cfg(not(loom))]
pub(crate) use lib::{Condvar, Mutex, now, spawn};
#[cfg(loom)]
pub(crate) use model::{Condvar, Mutex, now, spawn};

#[cfg(not(loom))]
pub(crate) type JoinHandle = std::thread::JoinHandle<()>;
#[cfg(loom)]
pub(crate) type JoinHandle = loom::thread::JoinHandle<()>;

#[cfg(not(loom))]
mod lib {
    use std::io;
    use std::time::Instant;

    pub(crate) use parking_lot::{Condvar, Mutex};

    use super::JoinHandle;

    /// The present time.
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// Starts a thread.
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
        std::thread::Builder::new().name(name.into()).spawn(run)
    }
}

#[cfg(loom)]
mod model {
    use std::io;
    use std::ops::{Deref, DerefMut};
    use std::sync::OnceLock;
    use std::time::Instant;

    use super::JoinHandle;

    /// With the interface of `parking_lot`.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// `None` while somebody waits with it.
    pub(crate) struct MutexGuard<'m, T>(Option<loom::sync::MutexGuard<'m, T>>);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("no thread panicked")))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("nobody waits with it")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("nobody waits with it")
        }
    }

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("nobody waits with it");
            guard.0 = Some(self.0.wait(held).expect("no thread panicked"));
        }

        /// Waits until it is woken: the time never comes.
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) {
            self.wait(guard);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// Always the same.
    pub(crate) fn now() -> Instant {
        static NOW: OnceLock<Instant> = OnceLock::new();
        *NOW.get_or_init(Instant::now)
    }

    pub(crate) fn spawn(_: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
        Ok(loom::thread::spawn(run))
    }
}
