//! Setting up a pool.

use std::sync::Arc;
use std::time::Duration;

use super::lists::{Index, List, Lists, MOST_BUFFERS};
use super::{Class, Counters, Inner, Pool, Shelf, WaitList, cleaner};
use crate::check::{check_limit, check_multiple};
use crate::error::Error;
use crate::machine::Machine;
use crate::plan::ClearPlan;
use crate::region::{Backing, Prefault, Region, RegionOptions};
use crate::sync::{AtomicU64, AtomicUsize};
use crate::sys::base_page_bytes;
use tollgate_topology::NodeId;

/// What a take does when every buffer of its class is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtMaximum {
    /// Waits up to this long for one to be given back.
    Wait(Duration),
    /// Returns [`Error::Exhausted`] at once. A buffer that the cleaner works on at that moment is
    /// not waited for.
    Refuse,
    /// Maps fresh base pages, which are unmapped when given back; refuses when `most` such buffers
    /// are in use.
    BasePages {
        /// Most buffers beyond the pool.
        most: usize,
    },
}

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
            // The length is set for each shelf.
            region: Region::options(base_page_bytes()),
        }
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
    /// [`Error::Zero`], [`Error::Unaligned`] and [`Error::TooLarge`] for classes that cannot be,
    /// and the errors of [`RegionOptions::map`].
    pub fn build(mut self) -> Result<Pool, Error> {
        self.check()?;
        self.merge_classes();
        if self.all_nodes {
            let nodes = self.region.machine.topology().memory_nodes();
            self.nodes = nodes.iter().copied().map(Some).collect();
        }
        let plan = self.plan.take();
        let plan = plan.unwrap_or_else(|| ClearPlan::detected_on(&self.region.machine));
        self.region.prefault = self.prefault.unwrap_or(Prefault::Touch(plan.touch()));
        let classes = self.classes.iter().map(|(bytes, count)| self.make_class(*bytes, *count));
        let classes = classes.collect::<Result<Vec<Class>, Error>>()?;
        Ok(Pool {
            inner: Arc::new(Inner {
                classes,
                shelf_of_cpu: self.shelf_of_cpu(),
                plan,
                at_maximum: self.at_maximum,
                secret: self.secret,
                leak_check: self.leak_check,
                cleaner: cleaner::Starter::new(),
                extra_options: self.region.prefault(Prefault::Lazy),
            }),
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
            if bytes == 0 || count == 0 {
                return Err(Error::Zero { what: "a class of a pool", least_bytes: page });
            }
            check_multiple("a class of a pool", bytes, page)?;
            total = bytes
                .checked_mul(count)
                .and_then(|all| all.checked_add(total))
                .unwrap_or(usize::MAX);
        }
        check_limit("a pool", total, &self.region.machine)
    }

    fn make_class(&self, buffer_bytes: usize, count: usize) -> Result<Class, Error> {
        let shelves = self.nodes.len().min(count);
        let share = |shelf: usize| count / shelves + usize::from(shelf < count % shelves);
        let make = |shelf: usize| self.make_shelf(buffer_bytes, share(shelf), self.nodes[shelf]);
        Ok(Class {
            buffer_bytes,
            count,
            shelves: (0..shelves).map(make).collect::<Result<_, Error>>()?,
            waiters: WaitList::new(),
            extra: AtomicUsize::new(0),
        })
    }

    fn make_shelf(
        &self,
        buffer_bytes: usize,
        count: usize,
        node: Option<NodeId>,
    ) -> Result<Shelf, Error> {
        let number = u32::try_from(count).ok().filter(|_| count <= MOST_BUFFERS);
        let number = number.ok_or_else(|| Error::TooLarge {
            what: "a class of a pool",
            bytes: buffer_bytes.saturating_mul(count),
            limit_bytes: buffer_bytes.saturating_mul(MOST_BUFFERS),
            limit: format!("{MOST_BUFFERS} buffers on a node"),
            way_out: "use larger buffers".into(),
        })?;
        let options = RegionOptions { len: buffer_bytes * count, ..self.region.clone() };
        let options = node.map_or(options.clone(), |node| options.prefer_node(node));
        let region = options.map()?;
        let lists = Lists::new(number);
        // Backwards, so that the first take gets the first buffer.
        (0..number).rev().for_each(|index| lists.push(List::Zeroed, Index(index)));
        Ok(Shelf {
            region,
            lists,
            turnover_bytes: AtomicU64::new(0),
            given_back_at: (0..count).map(|_| AtomicU64::new(u64::MAX)).collect(),
            counters: Counters::new(),
        })
    }

    /// For each CPU number the shelf on the memory node nearest to it.
    fn shelf_of_cpu(&self) -> Vec<usize> {
        let topology = self.region.machine.topology();
        let mut shelves = vec![0; topology.online().iter().last().map_or(0, |cpu| cpu.index() + 1)];
        for cpu in topology.online() {
            let from = topology.node_of(cpu).expect("an online CPU has a node");
            let distance = |node: &Option<NodeId>| node.map(|to| topology.node_distance(from, to));
            let nearest = (0..self.nodes.len()).min_by_key(|shelf| distance(&self.nodes[*shelf]));
            shelves[cpu.index()] = nearest.expect("a pool has a shelf");
        }
        shelves
    }
}
