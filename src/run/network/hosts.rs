//! What `--allow-host` names, and whether a request is for it.

use std::fmt;
use std::net::IpAddr;

use super::own;
use crate::cli::HostArg;

/// Ports of a host that was named without one.
const DEFAULT_PORTS: [u16; 2] = [443, 80];
/// Longest name of a host.
const NAME_MAX: usize = 253;

/// Where a request is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// In lower case, without a dot at the end, an IPv6 address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Target {
    /// Reads `HOST:PORT`; `None` if it is none. Without a port, `port` is meant.
    pub(super) fn parse(authority: &str, port: Option<u16>) -> Option<Self> {
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, number)) if !number.contains(']') => (host, number.parse().ok()?),
            _ => (authority, port?),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) => host.parse::<std::net::Ipv6Addr>().ok()?.to_string(),
            None => normal(host)?,
        };
        (port != 0).then_some(Self { host, port })
    }
}

/// A name as it is compared; `None` if it is none.
fn normal(host: &str) -> Option<String> {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (!host.is_empty() && host.len() <= NAME_MAX && host.bytes().all(is_plain)).then_some(host)
}

/// The hosts that CMD may reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Vec<HostArg>);

impl Hosts {
    pub(super) fn new(args: &[HostArg]) -> Self {
        Self(args.to_vec())
    }

    /// Whether the name and the port were named.
    pub(super) fn allow(&self, target: &Target) -> bool {
        self.0.iter().any(|host| has_port(host, target.port) && is_named(host, &target.host))
    }

    /// Whether `target`, which was named, may lead to this address. Public ones of others: yes. Those of
    /// this machine, public or not, and of its networks have to be named themselves, as whoever answers
    /// for a name could lead CMD there.
    pub(super) fn allow_address(&self, target: &Target, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let named = |host: &HostArg| host.name.parse().is_ok_and(|named: IpAddr| named == address);
        (is_public(address) && !own::is_own(address))
            || (target.host == "localhost" && address.is_loopback())
            || self.0.iter().any(|host| has_port(host, target.port) && named(host))
    }
}

fn has_port(host: &HostArg, port: u16) -> bool {
    host.port.map_or(DEFAULT_PORTS.contains(&port), |named| named == port)
}

/// `*.NAME` is every name below NAME, and not NAME itself.
fn is_named(named: &HostArg, host: &str) -> bool {
    match named.name.strip_prefix('*') {
        Some(end) => {
            host.len() > end.len() && host.ends_with(end) && host.parse::<IpAddr>().is_err()
        }
        None => match (named.name.parse::<IpAddr>(), host.parse::<IpAddr>()) {
            (Ok(named), Ok(host)) => named.to_canonical() == host.to_canonical(),
            _ => named.name == host,
        },
    }
}

/// An address of the internet. Those that carry an address of IPv4 go by that.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            let special = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || a == 0
                || a >= 240
                || (a == 100 && b & 0xc0 == 64)
                || (a, b, c) == (192, 0, 0)
                || (a == 198 && b & 0xfe == 18);
            !special
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h] = address.segments();
            let v4 = |high: u16, low: u16| {
                let [[p, q], [r, s]] = [high.to_be_bytes(), low.to_be_bytes()];
                IpAddr::from([p, q, r, s])
            };
            match (a, b) {
                // NAT64, and 6to4.
                (0x64, 0xff9b) => [c, d, e, f] == [0; 4] && is_public(v4(g, h)),
                (0x2002, _) => is_public(v4(b, c)),
                // Global unicast; all else is local, multicast or carries another address.
                _ => a & 0xe000 == 0x2000 && (a, b) != (0x2001, 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(named: &[&str]) -> Hosts {
        Hosts(named.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn target(text: &str) -> Target {
        Target::parse(text, Some(80)).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn names_and_ports_are_compared_as_they_are_meant() {
        let hosts = hosts(&["example.com", "api.test:8443", "*.cdn.test", "[::1]:7", "10.0.0.1"]);
        for yes in [
            "example.com:443",
            "EXAMPLE.com.:80",
            "example.com",
            "api.test:8443",
            "a.cdn.test:443",
            "a.b.cdn.test:443",
            "[0:0::1]:7",
            "10.0.0.1:80",
        ] {
            assert!(hosts.allow(&target(yes)), "{yes}");
        }
        for no in [
            "example.com:22",
            "www.example.com:443",
            "example.com.evil.test:443",
            "evilexample.com:443",
            "api.test:443",
            "cdn.test:443",
            "xcdn.test:443",
            "[::1]:443",
            "10.0.0.2:443",
            "1.1.1.1:443",
        ] {
            assert!(!hosts.allow(&target(no)), "{no}");
        }
    }

    #[test]
    fn what_is_no_authority_is_none() {
        for text in ["", ":80", "a b:80", "a:0", "a:99999", "me@host:80", "[::1", "a/b:80", "[a]:8"]
        {
            assert_eq!(Target::parse(text, None), None, "{text}");
        }
        assert_eq!(Target::parse("host", None), None);
        assert_eq!(target("[2001:DB8::1]:1").to_string(), "[2001:db8::1]:1");
    }

    #[test]
    fn addresses_near_by_have_to_be_named() {
        let hosts = hosts(&["name.test", "localhost:8080", "10.1.2.3", "corp.test"]);
        let may = |host: &str, address: &str| {
            hosts.allow_address(&target(host), address.parse().unwrap())
        };
        for public in ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:8.8.8.8"] {
            assert!(may("name.test", public), "{public}");
        }
        for near in [
            "127.0.0.1",
            "10.1.2.4",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "ff02::1",
        ] {
            assert!(!may("name.test", near), "{near}");
        }
        assert!(may("localhost:8080", "127.0.0.1") && may("localhost:8080", "::1"));
        assert!(may("corp.test", "10.1.2.3") && !may("localhost:8080", "10.1.2.3"));
    }
}
