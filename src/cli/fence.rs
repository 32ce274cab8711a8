//! The arguments of `tollgate run` that say what CMD gets outside of DIR.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    /// Whether CMD is fenced in: outside of DIR it changes nothing, and has /tmp, /run and what it
    /// writes to the home directory for itself, until it ends [default: on]
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) fence: Option<FenceWhen>,

    /// What CMD gets outside of DIR as it is, to read (the default) or also to change; may be
    /// repeated
    #[arg(long, value_name = "PATH[:ro|rw]")]
    pub(crate) allow: Vec<AllowArg>,

    /// A variable that CMD gets although it looks like a secret, or gets with this value; may be
    /// repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,

    /// The user to run CMD as, with that user's groups, or with GID alone
    #[arg(long, value_name = "NAME|UID[:GID]")]
    pub(crate) user: Option<String>,
}

/// What CMD gets of the network, and of the machine.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// What CMD gets of the network: the machine's, nothing, or a 127.0.0.1 of its own [default: on]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) network: Option<NetworkMode>,

    /// A host that CMD may reach, by HTTP and CONNECT through a proxy; all others it does not reach.
    /// `*.NAME` means every name below NAME; left out, PORT is 443 or 80; may be repeated
    #[arg(long, value_name = "NAME[:PORT]")]
    pub(crate) allow_host: Vec<HostArg>,
}

/// What CMD may use of the machine, and what must be had.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Most memory of CMD and all that it starts, what it writes to private places included
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) memory: Option<SizeArg>,

    /// Most processes and threads of CMD at a time
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = RangedI64ValueParser::<u64>::new().range(1..1 << 22))]
    pub(crate) processes: Option<u64>,

    /// How many CPUs CMD may use, as `2` or `0.5`
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) cpu: Option<CpuArg>,

    /// What must be had, or CMD is not started: passthrough, the whole fence, a network of its own,
    /// limits by cgroups
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub(crate) require: Vec<Required>,
}

/// `--require`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Required {
    /// The kernel reads and writes files directly
    Passthrough,
    /// Every part of the fence
    Fence,
    /// Not the machine's network
    Network,
    /// Each limit that is given holds for all of CMD
    Limits,
}

/// Least and most of `--memory`: what x86-64 can address with four levels of page tables is the most.
const SIZE_MIN: u64 = 1 << 20;
const SIZE_MAX: u64 = 1 << 46;

/// A number of bytes, as `512M` or `2G`: powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeArg(pub(crate) u64);

impl FromStr for SizeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a size of at least 1M, as 512M or 2G".to_owned();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(expected()),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(expected());
        }
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if bytes < SIZE_MIN => Err(expected()),
            Some(bytes) if bytes <= SIZE_MAX => Ok(Self(bytes)),
            _ => Err(format!("more than {} TiB, which no machine has", SIZE_MAX >> 40)),
        }
    }
}

/// CPUs, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuArg(pub(crate) u64);

impl FromStr for CpuArg {
    type Err = String;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0.01 to 4096")]
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(cpus) if (0.01..=4096.0).contains(&cpus) => Ok(Self((cpus * 1000.0).round() as u64)),
            _ => Err("expected a number of CPUs from 0.01 to 4096, as 2 or 0.5".to_owned()),
        }
    }
}

/// `--network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkMode {
    /// The machine's network
    On,
    /// None at all
    Off,
    /// A network of its own, in which what CMD starts reaches each other
    Loopback,
}

/// `NAME[:PORT]` as it was given: in lower case, an IPv6 address without brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostArg {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

impl FromStr for HostArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "expected NAME, NAME:PORT, *.NAME or an address, as `example.com`, `[::1]:8080`"
                .to_owned()
        };
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => {
                let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(expected)?;
                (name, Some(port))
            }
            _ => (text, None),
        };
        let name = name.to_ascii_lowercase();
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if let Some(address) = bracketed {
            let address: std::net::Ipv6Addr = address.parse().map_err(|_| expected())?;
            return Ok(Self { name: address.to_string(), port });
        }
        let name = name.strip_suffix('.').unwrap_or(&name).to_owned();
        let plain = name.strip_prefix("*.").unwrap_or(&name);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if plain.is_empty() || plain.starts_with('.') || !plain.chars().all(is_plain) {
            return Err(expected());
        }
        Ok(Self { name, port })
    }
}

/// `--fence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FenceWhen {
    /// Always
    On,
    /// Never: CMD writes wherever its user may
    Off,
}

/// `PATH[:ro|rw]` as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowArg {
    pub(crate) path: PathBuf,
    /// Else it is only read.
    pub(crate) writable: bool,
}

impl FromStr for AllowArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, writable) = match text.rsplit_once(':') {
            Some((path, "rw")) => (path, true),
            Some((path, "ro")) => (path, false),
            _ => (text, false),
        };
        if path.is_empty() {
            return Err("expected PATH, PATH:ro or PATH:rw".to_owned());
        }
        Ok(Self { path: path.into(), writable })
    }
}

/// `NAME[=VALUE]` as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvArg {
    pub(crate) name: OsString,
    /// Without, it keeps the one it has.
    pub(crate) value: Option<OsString>,
}

impl FromStr for EnvArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.into())),
            None => (text, None),
        };
        if name.is_empty() {
            return Err("expected NAME or NAME=VALUE".to_owned());
        }
        Ok(Self { name: name.into(), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_only_unless_it_says_otherwise() {
        let parsed = |text: &str| {
            text.parse::<AllowArg>()
                .map(|arg| (arg.path.to_str().unwrap().to_owned(), arg.writable))
        };
        assert_eq!(parsed("/a"), Ok(("/a".to_owned(), false)));
        assert_eq!(parsed("/a:ro"), Ok(("/a".to_owned(), false)));
        assert_eq!(parsed("/a:rw"), Ok(("/a".to_owned(), true)));
        assert_eq!(parsed("/a:b"), Ok(("/a:b".to_owned(), false)));
        assert_eq!(parsed("/a:b:rw"), Ok(("/a:b".to_owned(), true)));
        assert!(parsed("").is_err() && parsed(":rw").is_err());
    }

    #[test]
    fn sizes_and_cpus_are_numbers_with_a_unit() {
        let size = |text: &str| text.parse::<SizeArg>().map(|size| size.0);
        assert_eq!(size("2G"), Ok(2 << 30));
        assert_eq!(size("512MiB"), Ok(512 << 20));
        assert_eq!(size("1048576"), Ok(1 << 20));
        for wrong in ["", "G", "1.5G", "10", "-1G", "2X", "+1G"] {
            assert!(size(wrong).unwrap_err().contains("as 512M or 2G"), "{wrong}");
        }
        for huge in ["65T", "99999999999T", "99999999999999999999G", "18446744073709551615"] {
            assert!(size(huge).unwrap_err().contains("no machine has"), "{huge}");
        }
        let cpu = |text: &str| text.parse::<CpuArg>().map(|cpu| cpu.0);
        assert_eq!((cpu("2"), cpu("0.5")), (Ok(2000), Ok(500)));
        assert!(cpu("0").is_err() && cpu("x").is_err() && cpu("NaN").is_err());
    }

    #[test]
    fn a_host_is_a_name_or_an_address() {
        let parsed = |text: &str| text.parse::<HostArg>().map(|host| (host.name, host.port));
        assert_eq!(parsed("Example.com."), Ok(("example.com".to_owned(), None)));
        assert_eq!(parsed("*.a.test:8443"), Ok(("*.a.test".to_owned(), Some(8443))));
        assert_eq!(parsed("[::1]:80"), Ok(("::1".to_owned(), Some(80))));
        for wrong in ["", ":80", "a:0", "a:x", "*", "*.", "a.*.b", "http://a", "a/b", "::1", "[x]"]
        {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
