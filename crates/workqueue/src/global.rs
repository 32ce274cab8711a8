//! One runtime for the whole program, for those who need no other.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{BuildError, Builder, Fork, Handle, Queue, Runtime, SubmitError, context};

struct Global {
    runtime: Runtime,
    queue: Queue,
}

static GLOBAL: OnceLock<Global> = OnceLock::new();
/// Held while the runtime is built, so that it is built once.
static BUILDING: Mutex<()> = Mutex::new(());

/// The queue of the program's own runtime, named `default`. The runtime is built at the first use,
/// with every default or as [`configure_global`](crate::configure_global) said, and lives as long
/// as the program.
///
/// # Panics
/// If no thread can be started, or the machine cannot be understood. Call
/// [`configure_global`](crate::configure_global) first where that has to be an error.
pub fn queue() -> &'static Queue {
    match GLOBAL.get() {
        Some(global) => &global.queue,
        None => match build(Runtime::builder()) {
            Ok(global) => &global.queue,
            Err(error) => panic!("the global runtime cannot be built: {error}"),
        },
    }
}

/// The program's own runtime. See [`global_queue`](crate::global_queue).
///
/// # Panics
/// As [`global_queue`](crate::global_queue).
pub fn runtime() -> &'static Runtime {
    queue();
    // Built by the line before, and never taken away.
    GLOBAL.get().map_or_else(|| unreachable!("the global runtime was built"), |it| &it.runtime)
}

/// Builds the program's own runtime with these settings. Only `main` should do that: libraries
/// take a [`Queue`] from their caller, or use what there is.
///
/// # Errors
/// It exists already ([`BuildError::GlobalExists`]); or as [`Builder::build`].
pub fn configure_global(builder: Builder) -> Result<(), BuildError> {
    let mut new = false;
    let made = build_if_none(|| {
        new = true;
        builder.build()
    });
    made?;
    if new { Ok(()) } else { Err(BuildError::GlobalExists) }
}

fn build(builder: Builder) -> Result<&'static Global, BuildError> {
    build_if_none(|| builder.build())
}

fn build_if_none(
    build: impl FnOnce() -> Result<Runtime, BuildError>,
) -> Result<&'static Global, BuildError> {
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(global) = GLOBAL.get() {
        return Ok(global);
    }
    let runtime = build()?;
    let queue = runtime.queue("default").build()?;
    Ok(GLOBAL.get_or_init(|| Global { runtime, queue }))
}

/// Runs a closure on the program's own runtime; see [`Queue::spawn`].
///
/// ```
/// let answer = tollgate_workqueue::spawn(|| 6 * 7)?;
/// assert_eq!(answer.wait()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// That runtime was shut down.
///
/// # Panics
/// As [`global_queue`](crate::global_queue).
pub fn spawn<T, F>(closure: F) -> Result<Handle<T>, SubmitError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    queue().spawn(closure)
}

/// As [`Queue::spawn_blocking`], on the program's own runtime.
///
/// ```
/// let text = tollgate_workqueue::spawn_blocking(|| std::fs::read_to_string("Cargo.toml"))?;
/// assert!(text.wait()?.is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// That runtime was shut down.
///
/// # Panics
/// As [`global_queue`](crate::global_queue).
pub fn spawn_blocking<T, F>(closure: F) -> Result<Handle<T>, SubmitError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    queue().spawn_blocking(closure)
}

/// As [`Queue::join`], on the queue of the item that is running, or else on that of the program's
/// own runtime.
///
/// ```
/// fn sum(numbers: &[u64]) -> u64 {
///     if numbers.len() < 1000 {
///         return numbers.iter().sum();
///     }
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     let (left, right) = tollgate_workqueue::join(|| sum(left), || sum(right));
///     left + right
/// }
/// assert_eq!(sum(&Vec::from_iter(0..5000)), 12_497_500);
/// ```
///
/// # Panics
/// As [`Queue::join`]; as [`global_queue`](crate::global_queue).
#[inline]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    here(|queue| crate::forkjoin::join_on(queue, a, b))
}

/// As [`Queue::scope`], on the queue that [`join`] would use.
///
/// ```
/// let mut words = vec![String::from("a"), String::from("b")];
/// tollgate_workqueue::scope(|scope| {
///     for word in &mut words {
///         scope.spawn(|| word.push('!'));
///     }
/// });
/// assert_eq!(words, ["a!", "b!"]);
/// ```
///
/// # Panics
/// As [`Queue::scope`]; as [`global_queue`](crate::global_queue).
pub fn scope<'env, R>(body: impl for<'scope> FnOnce(&'scope Fork<'scope, 'env>) -> R) -> R {
    here(|queue| crate::forkjoin::scope_on(queue, body))
}

/// Calls `body` with the queue of the running item, or else of the program's own runtime.
#[inline]
fn here<R>(body: impl FnOnce(&crate::core::QueueCore) -> R) -> R {
    if !context::is_inside_any() {
        return body(queue().core());
    }
    let result = context::current_queue(body);
    result.unwrap_or_else(|| unreachable!("a thread inside an item has a queue"))
}
