//! Names of detectors, and what they report.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::own::OwnRegex;

/// A kind of secret that is known without being told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Detector {
    /// Private keys in PEM, OpenSSH, OpenPGP, SSH2 and PuTTY form, and age keys.
    PrivateKey,
    /// Tokens and keys of clouds and services that can be told by their format.
    Token,
    /// Passwords in URLs: `scheme://user:PASSWORD@host`.
    UrlPassword,
    /// JSON web tokens.
    Jwt,
    /// Card numbers with a valid check digit.
    Card,
    /// Values given to a name such as `password`, `api_key` or `client_secret`.
    Assigned,
    /// Every value of a file in the form of `.env`. Not among the default detectors: it is for such
    /// files only.
    Env,
}

impl Detector {
    /// All of them.
    pub const ALL: [Detector; 7] = [
        Self::PrivateKey,
        Self::Token,
        Self::UrlPassword,
        Self::Jwt,
        Self::Card,
        Self::Assigned,
        Self::Env,
    ];

    /// Its name in policies and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PrivateKey => "private-key",
            Self::Token => "token",
            Self::UrlPassword => "url-password",
            Self::Jwt => "jwt",
            Self::Card => "card",
            Self::Assigned => "assigned",
            Self::Env => "env",
        }
    }
}

impl fmt::Display for Detector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no detector has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no detector; there are {names}", names = names())]
pub struct UnknownDetector(pub String);

fn names() -> String {
    Detector::ALL.map(Detector::name).join(", ")
}

impl FromStr for Detector {
    type Err = UnknownDetector;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|detector| detector.name() == name);
        found.ok_or_else(|| UnknownDetector(name.to_owned()))
    }
}

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Detectors {
    pub(crate) named: Vec<Detector>,
    pub(crate) own: Vec<OwnRegex>,
}

impl Detectors {
    /// Those of [`Detectors::default`]: all but [`Detector::Env`].
    pub const DEFAULT: [Detector; 6] = [
        Detector::PrivateKey,
        Detector::Token,
        Detector::UrlPassword,
        Detector::Jwt,
        Detector::Card,
        Detector::Assigned,
    ];

    /// These, and nothing else.
    #[must_use]
    pub fn only(named: &[Detector]) -> Detectors {
        Detectors { named: named.to_vec(), own: Vec::new() }
    }

    /// These too.
    #[must_use]
    pub fn and(mut self, more: &[Detector]) -> Detectors {
        let new: Vec<_> = more.iter().filter(|detector| !self.has(**detector)).copied().collect();
        self.named.extend(new);
        self
    }

    /// This regular expression too.
    #[must_use]
    pub fn and_own(mut self, regex: OwnRegex) -> Detectors {
        if !self.own.iter().any(|own| own.pattern() == regex.pattern()) {
            self.own.push(regex);
        }
        self
    }

    pub(crate) fn has(&self, detector: Detector) -> bool {
        self.named.contains(&detector)
    }
}

/// All but [`Detector::Env`].
impl Default for Detectors {
    fn default() -> Detectors {
        Detectors::only(&Detectors::DEFAULT)
    }
}

/// Which detector found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule<'a> {
    /// One of the known ones.
    Named(Detector),
    /// A regular expression of the caller's, by its name.
    Own(&'a str),
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(detector) => detector.fmt(f),
            Self::Own(name) => write!(f, "regex {name}"),
        }
    }
}

/// Something that is masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// By which rule.
    pub rule: Rule<'a>,
    /// What kind, for a [`Detector::Token`]: whose token it is.
    pub kind: Option<&'static str>,
    /// Its bytes, from the beginning of the range that was asked for; cut at the range's ends.
    pub bytes: Range<usize>,
    /// Its first bytes lie before the range.
    pub began_before: bool,
}
