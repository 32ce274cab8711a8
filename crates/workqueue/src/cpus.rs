//! Which CPUs a runtime uses, and the scope of queues that did not choose: both can change while
//! work is queued.
//!
//! The CPUs of the process change when its cpuset does, or when a CPU goes on or off line. Nothing
//! in user space tells of that for every kind of mount, so the housekeeper asks once a second,
//! while there is work: its own affinity mask is what the process may use, for nobody else
//! restricts it. When that has changed the machine is read anew and every queue gets a pool with
//! new pods. Items in the old pools are run there, as after any change of attributes.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tollgate_topology::{CpuSet, Scope, Topology, UnknownScope};

use crate::error::BuildError;

/// The variable that chooses the scope of queues that did not choose, unless the program does.
pub const SCOPE_VARIABLE: &str = "TOLLGATE_WORKQUEUE_SCOPE";

/// How often the CPUs of the process are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Cpus {
    now: StdMutex<Now>,
    /// Whether the machine is the real one, whose CPUs may come and go.
    watched: bool,
}

struct Now {
    machine: Arc<Topology>,
    /// What the program wants used.
    asked: Option<CpuSet>,
    default_scope: Scope,
    looked: Instant,
    /// The latest change is not in effect everywhere.
    again: bool,
}

impl Cpus {
    pub(crate) fn new(
        machine: &Topology,
        watched: bool,
        asked: Option<CpuSet>,
        default_scope: Scope,
    ) -> Self {
        let machine = Arc::new(machine.clone());
        let now = Now { machine, asked, default_scope, looked: Instant::now(), again: false };
        Self { now: StdMutex::new(now), watched }
    }

    /// Later placements use this scope for queues that did not choose.
    pub(crate) fn set_default_scope(&self, scope: Scope) {
        self.now().default_scope = scope;
    }

    /// Later placements use no other CPUs than these.
    pub(crate) fn ask_for(&self, cpus: Option<CpuSet>) {
        self.now().asked = cpus;
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine, with the CPUs that the process may use now.
    pub(crate) fn machine(&self) -> Arc<Topology> {
        Arc::clone(&self.now().machine)
    }

    /// The scope of a queue that chose this one, or none.
    pub(crate) fn scope(&self, own: Option<Scope>) -> Scope {
        own.unwrap_or_else(|| self.default_scope())
    }

    pub(crate) fn default_scope(&self) -> Scope {
        self.now().default_scope
    }

    /// The CPUs of a queue with this mask: those of the mask that may be used and are wanted. When
    /// that leaves none, all that are wanted, or else all that may be used.
    pub(crate) fn mask(&self, own: Option<&CpuSet>) -> CpuSet {
        let now = self.now();
        let allowed = now.machine.allowed();
        let within = |set: &CpuSet, mask: Option<&CpuSet>| {
            let both = mask.map(|mask| mask.intersection(set));
            both.filter(|both| !both.is_empty()).unwrap_or_else(|| set.clone())
        };
        within(&within(allowed, now.asked.as_ref()), own)
    }

    /// Looks whether the process may use other CPUs than before. Called by the housekeeper.
    pub(crate) fn have_changed(&self) -> bool {
        let mut now = self.now();
        if !self.watched || now.looked.elapsed() < LOOK_EVERY {
            return false;
        }
        now.looked = Instant::now();
        // Reading the whole machine takes some milliseconds, the mask alone a microsecond.
        let same = crate::sys::affinity().is_none_or(|cpus| cpus == *now.machine.allowed());
        if same && !now.again {
            return false;
        }
        drop(now);
        let Ok(machine) = Topology::current() else { return false };
        let mut now = self.now();
        let changed = std::mem::take(&mut now.again) || now.machine.allowed() != machine.allowed();
        now.machine = Arc::new(machine);
        changed
    }

    /// The queues could not be given what was found last.
    pub(crate) fn look_again(&self) {
        self.now().again = true;
    }
}

/// The scope that the environment chooses.
pub(crate) fn scope_from_environment() -> Result<Option<Scope>, BuildError> {
    let Some(value) = std::env::var_os(SCOPE_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    value.parse().map(Some).map_err(|error| BuildError::Environment {
        variable: SCOPE_VARIABLE,
        reason: UnknownScope::to_string(&error),
    })
}
