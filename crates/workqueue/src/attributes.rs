//! Attributes of a queue: values, defaults, and their `ATTRIBUTE=VALUE` form.

use tollgate_topology::{CpuSet, Scope, Topology};

use crate::AttributeError;
use crate::maxima::{MAX_MAX_ACTIVE, MAX_NICE, MIN_NICE};

/// What can be changed on a queue while work is queued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// CPUs that work together. `None`: the runtime's default.
    pub affinity_scope: Option<Scope>,
    /// Workers never leave the pod of their scope.
    pub affinity_strict: bool,
    /// Workers are moved to the CPU that issued the item. Kept for comparison: it costs two system
    /// calls and a migration for items issued elsewhere.
    pub localize: bool,
    /// The CPUs that workers may use. `None`: all that the process may.
    pub cpumask: Option<CpuSet>,
    /// Scheduling priority of the workers, -20 to 19. Below 0 needs CAP_SYS_NICE. Zero is the level
    /// of the thread that built the runtime.
    pub nice: i32,
    /// Items running at once. `None`: as many as there are workers.
    pub max_active: Option<u32>,
}

impl Attributes {
    /// Changes one attribute by its `ATTRIBUTE=VALUE` form. The value `default` takes a choice back:
    /// a scope, mask or limit is the runtime's then, a switch off, a nice level 0.
    ///
    /// # Errors
    /// The attribute does not exist or cannot have this value.
    pub fn set(&mut self, setting: &str) -> Result<(), AttributeError> {
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| AttributeError::NotASetting(setting.to_owned()))?;
        let (name, value) = (name.trim(), value.trim());
        match name {
            "affinity_scope" => self.affinity_scope = or_default(value, |v| Ok(v.parse()?))?,
            "affinity_strict" => {
                self.affinity_strict = switch("affinity_strict", value)?.unwrap_or_default();
            }
            "localize" => self.localize = switch("localize", value)?.unwrap_or_default(),
            "cpumask" => self.cpumask = or_default(value, parse_mask)?,
            "nice" => {
                let level = |v: &str| number("nice", v, "a number from -20 to 19, or default");
                self.nice = or_default(value, level)?.unwrap_or_default();
            }
            "max_active" => {
                self.max_active =
                    or_default(value, |v| number("max_active", v, "a number from 1, or default"))?;
            }
            _ => return Err(AttributeError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    /// Checks values against their ranges.
    pub(crate) fn check_ranges(&self) -> Result<(), AttributeError> {
        if let Some(n) = self.max_active.filter(|n| !(1..=MAX_MAX_ACTIVE).contains(n)) {
            return Err(AttributeError::MaxActive(n));
        }
        if !(MIN_NICE..=MAX_NICE).contains(&self.nice) {
            return Err(AttributeError::Nice(self.nice));
        }
        Ok(())
    }

    /// Checks the mask against this machine.
    pub(crate) fn check_mask(&self, topology: &Topology) -> Result<(), AttributeError> {
        Ok(self.cpumask.as_ref().map_or(Ok(()), |mask| topology.check_mask(mask))?)
    }
}

fn or_default<T>(
    value: &str,
    parse: impl Fn(&str) -> Result<T, AttributeError>,
) -> Result<Option<T>, AttributeError> {
    if value == "default" { Ok(None) } else { parse(value).map(Some) }
}

fn switch(attribute: &'static str, value: &str) -> Result<Option<bool>, AttributeError> {
    or_default(value, |value| match value {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" => Ok(false),
        _ => Err(AttributeError::Value {
            attribute,
            value: value.to_owned(),
            expected: "true, false or default",
        }),
    })
}

fn number<T: std::str::FromStr>(
    attribute: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<T, AttributeError> {
    let error = |_| AttributeError::Value { attribute, value: value.to_owned(), expected };
    value.parse().map_err(error)
}

fn parse_mask(value: &str) -> Result<CpuSet, AttributeError> {
    value.parse().map_err(|_| AttributeError::Value {
        attribute: "cpumask",
        value: value.to_owned(),
        expected: "a list such as 0-3,8, or default",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let mut attributes = Attributes::default();
        for setting in ["affinity_scope=numa", "affinity_strict=1", "localize=yes", "nice=5"] {
            attributes.set(setting).unwrap();
        }
        attributes.set("cpumask = 0-1,4").unwrap();
        attributes.set("max_active=7").unwrap();
        assert_eq!(attributes.affinity_scope, Some(Scope::Numa));
        assert!(attributes.affinity_strict && attributes.localize);
        assert_eq!((attributes.nice, attributes.max_active), (5, Some(7)));
        assert_eq!(attributes.cpumask.as_ref().unwrap().to_string(), "0-1,4");
        attributes.set("affinity_scope=default").unwrap();
        attributes.set("max_active=default").unwrap();
        assert_eq!((attributes.affinity_scope, attributes.max_active), (None, None));
        for attribute in ["affinity_strict", "localize", "nice", "cpumask"] {
            attributes.set(&format!("{attribute}=default")).unwrap();
        }
        assert_eq!(attributes, Attributes::default());
    }

    #[test]
    fn wrong_settings_name_what_is_wrong() {
        let mut attributes = Attributes::default();
        let cases = [
            ("nice", "ATTRIBUTE=VALUE"),
            ("colour=red", "\"colour\""),
            ("affinity_scope=socket", "socket"),
            ("affinity_strict=maybe", "maybe"),
            ("cpumask=x", "0-3,8"),
            ("nice=low", "-20 to 19"),
            ("max_active=-1", "max_active=-1"),
        ];
        for (setting, named) in cases {
            let error = attributes.set(setting).unwrap_err().to_string();
            assert!(error.contains(named), "{setting}: {error}");
        }
        assert_eq!(attributes, Attributes::default(), "nothing changed");
    }

    #[test]
    fn ranges_are_checked_against_the_machine() {
        let machine = Topology::from_synthetic("l3:2 core:2").unwrap();
        let check = |setting: &str| {
            let mut attributes = Attributes::default();
            attributes.set(setting).unwrap();
            attributes.check_ranges().and_then(|()| attributes.check_mask(&machine))
        };
        assert!(matches!(check("max_active=0"), Err(AttributeError::MaxActive(0))));
        assert!(matches!(check("max_active=70000"), Err(AttributeError::MaxActive(70_000))));
        assert!(matches!(check("nice=-21"), Err(AttributeError::Nice(-21))));
        assert!(matches!(check("cpumask=9"), Err(AttributeError::Mask(_))));
        let empty = Attributes { cpumask: Some(CpuSet::new()), ..Attributes::default() };
        assert!(matches!(empty.check_mask(&machine), Err(AttributeError::Mask(_))));
        assert!(check("cpumask=1-2").is_ok());
    }
}
