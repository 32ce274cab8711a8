//! The head of a request to the proxy: who it is for, and what is sent on.

use super::hosts::Target;

/// Longest head, in bytes.
pub(super) const HEAD_MAX_BYTES: usize = 32 << 10;
/// Most fields of a head.
const FIELDS_MAX: usize = 128;
/// Fields that are meant for the proxy, and not sent on.
const OF_PROXY: &[&str] =
    &["connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "upgrade"];

/// What a client asks the proxy for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// `CONNECT`: bytes in both directions.
    Tunnel(Target),
    /// A request by HTTP without encryption, with the head that is sent on.
    Request(Target, Vec<u8>),
}

/// Reads a head, and how many bytes it has. `None`: more bytes are needed.
///
/// # Errors
/// Why it is no request to a proxy.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Asked, usize)>, &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) => return Err("the head of the request is too long"),
        Err(httparse::Error::TooManyHeaders) => {
            return Err("the request has too many fields; 128 are allowed");
        }
        Err(_) => return Err("this is no request of HTTP/1"),
    };
    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    if method == "CONNECT" {
        let target = Target::parse(path, None).ok_or("CONNECT takes HOST:PORT")?;
        return Ok(Some((Asked::Tunnel(target), length)));
    }
    let scheme = path.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let rest = path.get(7..).filter(|_| scheme);
    let rest = rest.ok_or("this is a proxy: it takes CONNECT and `http://` addresses")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, place) = rest.split_at(end);
    let target = Target::parse(authority, Some(80)).ok_or("the address names no host")?;
    let slash = if place.starts_with('/') { "" } else { "/" };
    let mut head =
        format!("{method} {slash}{place} HTTP/1.1\r\nHost: {authority}\r\n").into_bytes();
    for field in request.headers.iter() {
        if !OF_PROXY.iter().any(|name| field.name.eq_ignore_ascii_case(name)) {
            head.extend_from_slice(field.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(field.value);
            head.extend_from_slice(b"\r\n");
        }
    }
    // One request for each connection: the next one is judged by itself.
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(Some((Asked::Request(target, head), length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_and_plain_requests_are_told_apart() {
        let text = b"CONNECT Example.com:443 HTTP/1.1\r\nHost: other\r\n\r\nrest";
        let target = Target { host: "example.com".into(), port: 443 };
        assert_eq!(parse(text), Ok(Some((Asked::Tunnel(target), text.len() - 4))));
        let text = b"GET http://a.test?q HTTP/1.1\r\nHost: evil\r\nProxy-Authorization: x\r\n\
                     Accept: */*\r\nConnection: keep-alive\r\n\r\n";
        let Ok(Some((Asked::Request(target, head), length))) = parse(text) else { panic!() };
        assert_eq!((target.to_string().as_str(), length), ("a.test:80", text.len()));
        let expected =
            "GET /?q HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }

    #[test]
    fn what_is_not_for_a_proxy_is_refused_and_what_is_short_is_waited_for() {
        for text in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET https://a.test/ HTTP/1.1\r\n\r\n",
            "CONNECT a.test HTTP/1.1\r\n\r\n",
            "GET http:///x HTTP/1.1\r\n\r\n",
            "GET http://me@a.test/ HTTP/1.1\r\n\r\n",
            "\x16\x03\x01\x02",
            "GET http://a.test/ HTTP/1.1\r\nA b\x00\r\n\r\n",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert_eq!(parse(b"CONNECT a.test:443 HT"), Ok(None));
        let long =
            [b"GET http://a/ HTTP/1.1\r\nA: ".as_slice(), &vec![b'x'; HEAD_MAX_BYTES]].concat();
        assert!(parse(&long).is_err());
        let many = |fields| format!("GET http://a/ HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(fields));
        assert!(parse(many(FIELDS_MAX).as_bytes()).is_ok());
        assert!(parse(many(FIELDS_MAX + 1).as_bytes()).unwrap_err().contains("too many fields"));
    }
}
