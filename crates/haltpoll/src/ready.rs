//! The means that was chosen, in use.

use crate::conditions::Roots;
use crate::hook::Seen;
use crate::idleness::Idleness;
use crate::latency::Latency;
use crate::mode::Means;
use crate::pollers::{MAX_POLLERS, Pollers};

/// The means, ready to use.
pub(crate) enum Ready {
    Latency(Latency, Idleness),
    Pollers(Pollers),
}

impl Ready {
    pub(crate) fn means(&self) -> Means {
        match self {
            Self::Latency(..) => Means::Latency,
            Self::Pollers(_) => Means::Pollers,
        }
    }

    /// Begins; or says until when there is nothing to do, because no CPU is idle.
    pub(crate) fn hold(&mut self, seen: &Seen, roots: &Roots, now_ns: u64) -> Option<u64> {
        let rest = self.renew(seen, roots, now_ns);
        if let (Self::Latency(latency, _), None) = (self, rest) {
            note(latency.hold());
        }
        rest
    }

    /// Goes on; or says until when there is nothing to do.
    pub(crate) fn renew(&mut self, seen: &Seen, roots: &Roots, now_ns: u64) -> Option<u64> {
        match self {
            Self::Latency(_, idleness) => idleness.look(now_ns, || roots.cpu_times()),
            Self::Pollers(pollers) => {
                // Callers first: where they wait, they are woken.
                let mut cpus: Vec<u16> = Vec::new();
                if pollers.needs_seen() {
                    let callers = seen.callers.iter().take(MAX_POLLERS);
                    cpus.extend(callers.filter_map(|&caller| roots.cpu_of(caller)));
                    cpus.extend(&seen.servers);
                }
                let cpus = pollers.choose(&cpus);
                pollers.keep_awake(&cpus, now_ns)
            }
        }
    }

    pub(crate) fn release(&mut self) {
        match self {
            Self::Latency(latency, _) => note(latency.release()),
            Self::Pollers(pollers) => pollers.rest(),
        }
    }

    pub(crate) fn cpu_ns(&self) -> u64 {
        match self {
            Self::Latency(..) => 0,
            Self::Pollers(pollers) => pollers.cpu_ns(),
        }
    }
}

/// A request that the kernel refuses after it took others changes nothing.
pub(crate) fn note(outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "cpu_dma_latency");
    }
}
