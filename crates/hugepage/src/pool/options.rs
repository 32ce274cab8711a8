//! Setting up a pool.

use tollgate_topology::{LlcId, NodeId};

use super::core::{AtMaximum, Class, Core, CpuPlace, Record, Shelf, Starter};
use super::counters::Counters;
use super::handle::{Handle, Pool};
use super::heat::CacheTraffic;
use super::lists::{Index, List, Lists, MOST_BUFFERS};
use super::refs::Refs;
use crate::check::{check_multiple, check_physical};
use crate::error::Error;
use crate::machine::Machine;
use crate::plan::ClearPlan;
use crate::region::{Backing, Prefault, Region, RegionOptions};
use crate::sync::AtomicBool;
use crate::sys::base_page_bytes;
use std::sync::Arc;

/// How a pool is to be. Made by [`Pool::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    classes: Vec<(usize, usize)>,
    nodes: Vec<Option<NodeId>>,
    all_nodes: bool,
    at_maximum: AtMaximum,
    plan: Option<ClearPlan>,
    secret: bool,
    leak_check: bool,
    /// `None`: at once, through the byte that the plan says.
    prefault: Option<Prefault>,
    /// Buffers of each class that have memory from the start.
    backed_at_start: usize,
    region: RegionOptions,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            classes: Vec::new(),
            nodes: vec![None],
            all_nodes: false,
            at_maximum: AtMaximum::Refuse,
            plan: None,
            secret: false,
            leak_check: false,
            prefault: None,
            backed_at_start: usize::MAX,
            // The length is set for each shelf.
            region: Region::options(base_page_bytes()),
        }
    }
}

impl Pool {
    /// A pool to be set up and built.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }
}

impl PoolBuilder {
    /// Adds `count` buffers of `buffer_bytes` each, to those of that size if there are any: the
    /// maximum, and what is mapped from the start.
    pub fn class(mut self, buffer_bytes: usize, count: usize) -> Self {
        self.classes.push((buffer_bytes, count));
        self
    }

    /// What a take does at the maximum; refuses unless set.
    pub fn at_maximum(mut self, at_maximum: AtMaximum) -> Self {
        self.at_maximum = at_maximum;
        self
    }

    /// One shelf for each online NUMA node, the buffers spread evenly. Without this there is one
    /// shelf, wherever the kernel puts it.
    pub fn per_node(mut self) -> Self {
        self.all_nodes = true;
        self
    }

    /// The plan to clear by, such as a tuned one; [`ClearPlan::detected`] unless set.
    pub fn plan(mut self, plan: ClearPlan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Buffers hold secrets: locked, not dumped, zero in a forked child, wiped when the pool goes.
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self.region = self.region.secret();
        self
    }

    /// The memory can be handed to another process, see [`RegionOptions::shareable`] and
    /// [`super::Buffer::descriptor`]. Excludes [`secret`](Self::secret).
    pub fn shareable(mut self) -> Self {
        self.region = self.region.shareable(true);
        self
    }

    /// The backings to try, see [`RegionOptions::ladder`].
    pub fn ladder(mut self, ladder: &[Backing]) -> Self {
        self.region = self.region.ladder(ladder);
        self
    }

    /// When the memory is faulted in; unless set at once, through the byte that the plan says.
    pub fn prefault(mut self, prefault: Prefault) -> Self {
        self.prefault = Some(prefault);
        self
    }

    /// Only so many buffers of each class get memory when the pool is built; the others get theirs
    /// when they are first taken, which is then an error where there is none. All, unless set. The
    /// address space for all of them, and hugetlb pages, are reserved in any case. [`Pool::trim`]
    /// is the way back.
    pub fn backed_at_start(mut self, count: usize) -> Self {
        self.backed_at_start = count;
        self
    }

    /// Scans every buffer that is taken for bytes of an earlier owner, and plants a canary in every
    /// one given back. For debugging: it reads every byte.
    pub fn leak_check(mut self, leak_check: bool) -> Self {
        self.leak_check = leak_check;
        self
    }

    /// Reads the machine's state from elsewhere, for tests.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.region = self.region.machine(machine);
        self
    }

    /// Several shelves that are bound to no node, for tests on a machine with one.
    #[cfg(test)]
    pub(super) fn unbound_shelves(mut self, count: usize) -> Self {
        self.nodes = vec![None; count];
        self
    }

    /// Maps the memory.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NoBuffers`], [`Error::Unaligned`] and [`Error::TooLarge`] for
    /// classes that cannot be, and the errors of [`RegionOptions::map`].
    pub fn build(self) -> Result<Pool, Error> {
        Ok(Pool { handle: Arc::new(Handle::new(self.core()?)) })
    }

    pub(super) fn core(mut self) -> Result<Core, Error> {
        self.check()?;
        self.merge_classes();
        if self.all_nodes {
            let nodes = self.region.machine.topology().memory_nodes();
            self.nodes = nodes.iter().copied().map(Some).collect();
        }
        let plan = self.plan.take();
        let plan = plan.unwrap_or_else(|| ClearPlan::detected_on(&self.region.machine));
        let prefault = self.prefault.unwrap_or(Prefault::Touch(plan.touch()));
        self.region.what = "a pool";
        let mut classes = Vec::new();
        for (bytes, count) in self.classes.clone() {
            classes.push(self.make_class(bytes, count, prefault)?);
        }
        let topology = self.region.machine.topology();
        let cpus = self.cpu_places();
        Ok(Core {
            classes,
            refs: Refs::new(cpus.len()),
            counters: (0..cpus.len()).map(|_| Counters::new()).collect(),
            caches: (0..topology.llcs().len()).map(|_| CacheTraffic::new()).collect(),
            cpus,
            plan,
            prefault,
            at_maximum: self.at_maximum,
            secret: self.secret,
            leak_check: self.leak_check,
            pinned: AtomicBool::new(false),
            starter: Starter::new(),
            extra_options: self.region.prefault(Prefault::Lazy),
        })
    }

    /// Smallest first; classes of one size become one.
    fn merge_classes(&mut self) {
        self.classes.sort_unstable();
        self.classes.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                // `check` has added them up without overflow.
                kept.1 += next.1;
            }
            same
        });
    }

    fn check(&self) -> Result<(), Error> {
        let page = base_page_bytes();
        if self.classes.is_empty() {
            return Err(Error::Zero { what: "a pool", least_bytes: page });
        }
        let mut total = 0usize;
        for &(bytes, count) in &self.classes {
            if bytes == 0 {
                return Err(Error::Zero { what: "a class of a pool", least_bytes: page });
            }
            if count == 0 {
                return Err(Error::NoBuffers { buffer_bytes: bytes });
            }
            check_multiple("a class of a pool", bytes, page)?;
            total = bytes
                .checked_mul(count)
                .and_then(|all| all.checked_add(total))
                .unwrap_or(usize::MAX);
        }
        check_physical("a pool", total, &self.region.machine)
    }

    fn make_class(
        &mut self,
        buffer_bytes: usize,
        count: usize,
        prefault: Prefault,
    ) -> Result<Class, Error> {
        let shelves = self.nodes.len().min(count);
        let share = |all: usize, shelf: usize| all / shelves + usize::from(shelf < all % shelves);
        let backed = self.backed_at_start.min(count);
        let mut made = Vec::new();
        for at in 0..shelves {
            let (count, backed) = (share(count, at), share(backed, at));
            let shelf = self.make_shelf(buffer_bytes, count, self.nodes[at], (backed, prefault))?;
            if !matches!(shelf.region.report().backing, Backing::Hugetlb { .. }) {
                self.region.charged_before += shelf.region.len();
            }
            made.push(shelf);
        }
        Ok(Class::new(buffer_bytes, count, made))
    }

    fn make_shelf(
        &self,
        buffer_bytes: usize,
        count: usize,
        node: Option<NodeId>,
        (backed, prefault): (usize, Prefault),
    ) -> Result<Shelf, Error> {
        let number = u32::try_from(count).ok().filter(|_| count <= MOST_BUFFERS);
        let number = number.ok_or_else(|| Error::TooLarge {
            what: "a class of a pool",
            bytes: buffer_bytes.saturating_mul(count),
            limit_bytes: buffer_bytes.saturating_mul(MOST_BUFFERS),
            limit: format!("{MOST_BUFFERS} buffers on a node"),
            way_out: "use larger buffers".into(),
        })?;
        let at_once = if backed == count { prefault } else { Prefault::Lazy };
        let len = buffer_bytes * count;
        let options = RegionOptions { len, prefault: at_once, ..self.region.clone() };
        let options = node.map_or(options.clone(), |node| options.prefer_node(node));
        let region = options.map()?;
        if backed < count && backed > 0 {
            region.fault_in(0, backed * buffer_bytes, prefault)?;
        }
        let lists = Lists::new(number);
        // Backwards, so that the first take gets the first buffer.
        for index in (0..number).rev().map(Index) {
            let list = if index.index() < backed { List::Zeroed } else { List::Released };
            lists.push(list, index);
        }
        let records = (0..count).map(|_| Record::new()).collect();
        Ok(Shelf { region, lists, records })
    }

    /// For each CPU number its cache, and the shelf on the memory node nearest to it.
    fn cpu_places(&self) -> Box<[CpuPlace]> {
        let topology = self.region.machine.topology();
        let last = topology.online().iter().last().expect("a machine has an online CPU");
        let mut places = vec![CpuPlace { shelf: 0, cache: 0 }; last.index() + 1];
        for cpu in topology.online() {
            let from = topology.node_of(cpu).expect("an online CPU has a node");
            let distance = |node: &Option<NodeId>| node.map(|to| topology.node_distance(from, to));
            let nearest = (0..self.nodes.len()).min_by_key(|shelf| distance(&self.nodes[*shelf]));
            places[cpu.index()] = CpuPlace {
                shelf: nearest.expect("a pool has a shelf"),
                cache: topology.llc_of(cpu).map(LlcId::index).expect("an online CPU has a cache"),
            };
        }
        places.into_boxed_slice()
    }
}
