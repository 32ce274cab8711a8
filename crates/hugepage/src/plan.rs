//! Which engine for which situation.

use std::fmt;
use std::num::NonZeroUsize;

use crate::engine::{ClearSpec, Clearer, Copier, CopySpec, Store};
use crate::error::Error;
use crate::machine::Machine;
use crate::region::TouchAt;

/// Whether a buffer's bytes are in the cache. The ranking of the store kinds inverts between the
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heat {
    /// Written or read a moment ago: cached stores win.
    Hot,
    /// Not touched since at least as many bytes as the last-level cache holds went by.
    Cold,
}

/// What is known about a clear before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Whether the buffer is in the cache.
    pub heat: Heat,
    /// The offset in bytes that is used right afterwards, if that is known.
    pub target: Option<usize>,
    /// Length of the buffer in bytes.
    pub len: usize,
    /// How many threads clear at once.
    pub threads: NonZeroUsize,
}

impl Situation {
    /// A cold buffer, cleared by one thread, with nothing known of its use.
    pub fn cold(len: usize) -> Self {
        Self { heat: Heat::Cold, target: None, len, threads: NonZeroUsize::MIN }
    }

    /// A buffer that was used a moment ago, cleared by one thread.
    pub fn hot(len: usize) -> Self {
        Self { heat: Heat::Hot, ..Self::cold(len) }
    }

    /// The same, with the offset that is used next.
    #[must_use]
    pub fn target(self, offset: usize) -> Self {
        Self { target: Some(offset), ..self }
    }

    /// The same, cleared by several threads.
    #[must_use]
    pub fn threads(self, threads: NonZeroUsize) -> Self {
        Self { threads, ..self }
    }
}

/// A row of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Cold, no target, one thread.
    Cold,
    /// Cold, no target, several threads.
    ColdMany,
    /// Cold, with a target, one thread.
    Target,
    /// Cold, with a target, several threads.
    TargetMany,
    /// Hot, or small.
    Hot,
}

impl Cell {
    /// Every row.
    pub const ALL: [Self; 5] =
        [Self::Cold, Self::ColdMany, Self::Target, Self::TargetMany, Self::Hot];

    /// Its name in plans, caches and overrides.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::ColdMany => "cold-many",
            Self::Target => "target",
            Self::TargetMany => "target-many",
            Self::Hot => "hot",
        }
    }
}

/// Buffers up to this many bytes are cleared as if hot: what is won past the cache is lost when
/// their owner reads them.
pub const SMALL_BYTES: usize = 64 << 10;

/// The last-level cache that is assumed where the machine does not tell, in bytes.
const ASSUMED_LLC_BYTES: usize = 32 << 20;

/// For each situation the engine that this machine is fastest with.
#[derive(Clone, Debug)]
pub struct ClearPlan {
    clearers: [Clearer; Cell::ALL.len()],
    copy_cold: Copier,
    copy_hot: Copier,
    touch: TouchAt,
    llc_bytes: usize,
}

impl ClearPlan {
    /// A plan from the processor's features alone, without measuring.
    pub fn detected() -> Self {
        Self::detected_on(&Machine::current())
    }

    pub(crate) fn detected_on(machine: &Machine) -> Self {
        use Store::{Avx2, Avx512, Clzero, Hybrid, NtAvx2, NtAvx512, Stnp, Zva};
        let past_caches = first_clearer(&[NtAvx512, Clzero, NtAvx2, Avx512, Zva]);
        let target = first_clearer(&[Hybrid]);
        let cached = first_clearer(&[Avx512, Avx2]);
        Self {
            clearers: [past_caches, past_caches, target, target, cached],
            copy_cold: first_copier(&[NtAvx512, NtAvx2, Stnp], 512),
            copy_hot: first_copier(&[NtAvx512, NtAvx2, Stnp], 0),
            touch: TouchAt::Last,
            llc_bytes: machine.llc_bytes().unwrap_or(ASSUMED_LLC_BYTES),
        }
    }

    /// The row for a situation.
    #[must_use]
    pub fn cell(&self, situation: Situation) -> Cell {
        let small = situation.len <= SMALL_BYTES;
        // What does not fit in half of the cache is not in it, whoever touched it.
        let hot = situation.heat == Heat::Hot && situation.len <= self.llc_bytes / 2;
        match (situation.target, situation.threads.get()) {
            _ if small || hot => Cell::Hot,
            (None, 1) => Cell::Cold,
            (None, _) => Cell::ColdMany,
            (Some(_), 1) => Cell::Target,
            (Some(_), _) => Cell::TargetMany,
        }
    }

    /// The engine for a situation.
    #[must_use]
    pub fn clearer(&self, situation: Situation) -> &Clearer {
        self.at(self.cell(situation))
    }

    /// The engine of a row.
    #[must_use]
    pub fn at(&self, cell: Cell) -> &Clearer {
        &self.clearers[cell as usize]
    }

    /// Clears `buffer` the fastest way; `situation.len` is taken from the buffer.
    ///
    /// # Errors
    /// [`Error::TargetOutside`], with the buffer untouched.
    pub fn clear(&self, buffer: &mut [u8], situation: Situation) -> Result<(), Error> {
        let clearer = self.clearer(Situation { len: buffer.len(), ..situation });
        match situation.target {
            Some(target) => clearer.clear_towards(buffer, target),
            None => {
                clearer.clear(buffer);
                Ok(())
            }
        }
    }

    /// The engine to copy with, by whether the source is in the cache.
    #[must_use]
    pub fn copier(&self, source: Heat) -> &Copier {
        match source {
            Heat::Hot => &self.copy_hot,
            Heat::Cold => &self.copy_cold,
        }
    }

    /// Which byte of a page to touch first.
    #[must_use]
    pub fn touch(&self) -> TouchAt {
        self.touch
    }

    /// Size in bytes of the last-level cache that the plan reckons with.
    #[must_use]
    pub fn llc_bytes(&self) -> usize {
        self.llc_bytes
    }

    /// Sets rows from text: `cold = nt-avx512 forward whole; copy-cold = avx2; touch = last`, with
    /// semicolons or line ends between the rows. Comments start with `#`.
    ///
    /// # Errors
    /// [`Error::BadWord`] and the other errors of a specification; the plan is then as it was.
    pub fn set(&mut self, text: &str) -> Result<(), Error> {
        let mut plan = self.clone();
        for line in text.split([';', '\n']).map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line.split_once('=').ok_or_else(|| bad_row(line))?;
            plan.set_row(name.trim(), value.trim())?;
        }
        *self = plan;
        Ok(())
    }

    fn set_row(&mut self, name: &str, value: &str) -> Result<(), Error> {
        if let Some(cell) = Cell::ALL.into_iter().find(|cell| cell.name() == name) {
            self.clearers[cell as usize] = value.parse::<ClearSpec>()?.check()?;
            return Ok(());
        }
        match name {
            "copy-cold" => self.copy_cold = value.parse::<CopySpec>()?.check()?,
            "copy-hot" => self.copy_hot = value.parse::<CopySpec>()?.check()?,
            "touch" => self.touch = touch_of(value)?,
            _ => return Err(bad_row(name)),
        }
        Ok(())
    }

    pub(crate) fn set_clear(&mut self, cell: Cell, clearer: Clearer) {
        self.clearers[cell as usize] = clearer;
    }

    pub(crate) fn set_copy(&mut self, source: Heat, copier: Copier) {
        match source {
            Heat::Hot => self.copy_hot = copier,
            Heat::Cold => self.copy_cold = copier,
        }
    }

    pub(crate) fn set_touch(&mut self, touch: TouchAt) {
        self.touch = touch;
    }
}

/// Prints the rows as [`ClearPlan::set`] reads them.
impl fmt::Display for ClearPlan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cell in Cell::ALL {
            writeln!(out, "{} = {}", cell.name(), self.at(cell).spec())?;
        }
        writeln!(out, "copy-cold = {}", self.copy_cold.spec())?;
        writeln!(out, "copy-hot = {}", self.copy_hot.spec())?;
        let touch = if self.touch == TouchAt::First { "first" } else { "last" };
        writeln!(out, "touch = {touch}")
    }
}

fn bad_row(word: &str) -> Error {
    let cells: Vec<&str> = Cell::ALL.iter().map(|cell| cell.name()).collect();
    let allowed =
        format!("NAME = VALUE with the name {}, copy-cold, copy-hot or touch", cells.join(", "));
    Error::BadWord { word: word.into(), what: "a row of a plan", allowed }
}

fn touch_of(word: &str) -> Result<TouchAt, Error> {
    match word {
        "first" => Ok(TouchAt::First),
        "last" => Ok(TouchAt::Last),
        _ => Err(Error::BadWord {
            word: word.into(),
            what: "a byte to touch",
            allowed: "first or last".into(),
        }),
    }
}

fn first_clearer(stores: &[Store]) -> Clearer {
    let found = stores.iter().find_map(|store| ClearSpec::forward(*store).check().ok());
    found.unwrap_or_else(Clearer::plain)
}

fn first_copier(stores: &[Store], prefetch_bytes: usize) -> Copier {
    let spec = |store: &Store| CopySpec::forward(*store).prefetch(prefetch_bytes).check().ok();
    stores.iter().find_map(spec).unwrap_or_else(Copier::plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_situation_picks_the_row() {
        let plan = ClearPlan::detected();
        let mib = 1 << 20;
        let two = NonZeroUsize::new(2).unwrap();
        let cold = Situation::cold(2 * mib);
        assert_eq!(plan.cell(cold), Cell::Cold);
        assert_eq!(plan.cell(cold.threads(two)), Cell::ColdMany);
        assert_eq!(plan.cell(cold.target(5)), Cell::Target);
        assert_eq!(plan.cell(cold.target(5).threads(two)), Cell::TargetMany);
        assert_eq!(plan.cell(Situation::hot(2 * mib)), Cell::Hot);
        assert_eq!(plan.cell(Situation::cold(4096)), Cell::Hot);
        // Longer than half of the cache: it cannot be in it.
        assert_eq!(plan.cell(Situation::hot(plan.llc_bytes())), Cell::Cold);
    }

    #[test]
    fn a_plan_is_read_as_it_prints() {
        let mut plan = ClearPlan::detected();
        plan.set("cold = plain reverse 16K; copy-cold = plain; touch = first").unwrap();
        let text = plan.to_string();
        assert!(text.contains("cold = plain reverse 16K\n") && text.contains("touch = first\n"));
        let mut read = ClearPlan::detected();
        read.set(&text).unwrap();
        assert_eq!(read.to_string(), text);
    }

    #[test]
    fn a_bad_override_changes_nothing() {
        let mut plan = ClearPlan::detected();
        let before = plan.to_string();
        for text in ["cold = plain; warm = plain", "cold = plain; hot", "touch = middle"] {
            let error = plan.set(text).unwrap_err();
            assert!(matches!(error, Error::BadWord { .. }), "{error}");
            assert_eq!(plan.to_string(), before);
        }
    }

    #[test]
    fn clearing_by_the_plan_clears() {
        let plan = ClearPlan::detected();
        for situation in [Situation::hot(0), Situation::cold(0), Situation::cold(0).target(99_999)]
        {
            let mut buffer = vec![9; 100_000];
            plan.clear(&mut buffer, situation).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        let error = plan.clear(&mut [1; 8], Situation::hot(8).target(8)).unwrap_err();
        assert_eq!(error, Error::TargetOutside { target: 8, len: 8 });
    }
}
