//! Whether an address is one of this machine's own, whatever range it is of: a server in a data centre
//! has an address of the internet, and what listens at all addresses is reached by it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `struct nlmsghdr` and `struct rtmsg`, which an attribute may follow.
const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
const ATTRIBUTE_BYTES: usize = 4;
/// Where `struct rtmsg` says what kind of route it is.
const KIND_OFFSET: usize = HEADER_BYTES + 7;
/// Replies are of some hundred bytes.
const REPLY_MAX_BYTES: usize = 4096;

/// Whether what is sent to `address` stays on this machine.
pub(super) fn is_own(address: IpAddr) -> bool {
    // A container may be refused the question. The kernel sends from an address of the machine to that
    // address itself, but for further ones of a network in which the machine has several.
    is_local_route(address).unwrap_or_else(|_| is_its_own_source(address))
}

/// Whether the kernel's tables have the machine itself as the end of the way to `address`.
fn is_local_route(address: IpAddr) -> rustix::io::Result<bool> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    // Without a protocol: of routes.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    rustix::net::send(&socket, &question(address)?, SendFlags::empty())?;
    let mut reply = [0; REPLY_MAX_BYTES];
    let (length, _) = rustix::net::recv(&socket, &mut reply, RecvFlags::empty())?;
    let reply = &reply[..length.min(REPLY_MAX_BYTES)];
    // The other reply is an error: there is no way there.
    let is_route = reply.get(4..6) == Some(&libc::RTM_NEWROUTE.to_ne_bytes());
    let kind = reply.get(KIND_OFFSET).filter(|_| is_route).ok_or(Errno::NETUNREACH)?;
    Ok(*kind == libc::RTN_LOCAL)
}

/// The request for the route to `address` (rtnetlink(7)).
fn question(address: IpAddr) -> rustix::io::Result<Vec<u8>> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let too_large = |_| Errno::INVAL;
    let attribute = u16::try_from(ATTRIBUTE_BYTES + octets.len()).map_err(too_large)?;
    let length = HEADER_BYTES + ROUTE_BYTES + usize::from(attribute);
    let request = u16::try_from(libc::NLM_F_REQUEST).map_err(too_large)?;
    let family = u8::try_from(family).map_err(too_large)?;
    let bits = u8::try_from(octets.len() * 8).map_err(too_large)?;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).map_err(too_large)?.to_ne_bytes());
    bytes.extend(libc::RTM_GETROUTE.to_ne_bytes());
    bytes.extend(request.to_ne_bytes());
    // Neither a number of this message nor one of the sender.
    bytes.extend([0; 8]);
    // Of all else, the kernel's default.
    bytes.extend([family, bits]);
    bytes.extend([0; ROUTE_BYTES - 2]);
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(libc::RTA_DST.to_ne_bytes());
    bytes.extend(octets);
    Ok(bytes)
}

/// Whether the machine has `address` as its own where it sends to it. This sends nothing.
fn is_its_own_source(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Any port but 0.
    let socket = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    socket.is_ok_and(|own| own.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_told_from_others() {
        for own in ["127.0.0.1", "127.1.2.3"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
            assert!(is_local_route(own.parse().unwrap()).unwrap(), "{own}");
        }
        assert!(is_its_own_source("127.0.0.1".parse().unwrap()));
        for other in ["1.1.1.1", "2606:4700::1111", "198.51.100.1"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
            assert!(!is_its_own_source(other.parse().unwrap()), "{other}");
        }
    }
}
