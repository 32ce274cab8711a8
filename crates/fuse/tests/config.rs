//! Configurations that no session can have are refused before anything starts, by their field.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::Lower;
use tollgate_fuse::memory::{self, Kernel};
use tollgate_fuse::*;

const SOON: Duration = Duration::from_secs(5);

fn start(config: SessionConfig) -> (Kernel, Result<Running, SessionError>) {
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let fs = Lower::new(Path::new("/"));
    let running = Session::with_transport(transport, Arc::clone(&fs), config).start();
    (kernel, running)
}

#[test]
fn a_value_out_of_range_is_named_with_its_range() {
    type Change = fn(&mut SessionConfig);
    let cases: [(&str, &str, &str, Change); 13] = [
        ("threads", "0", "from 1 to 256", |c| c.threads = 0),
        ("reserve", "257", "from 0 to 256", |c| c.reserve = 257),
        ("max_stack_depth", "3", "0, 1 or 2", |c| c.max_stack_depth = 3),
        ("max_write", "268431361", "at most 268431360", |c| c.max_write = 268_431_361),
        ("max_write", "4294967295", "at most 268431360", |c| c.max_write = u32::MAX),
        ("time_gran_ns", "0", "from 1 to 1000000000", |c| c.time_gran_ns = 0),
        ("time_gran_ns", "1000000001", "from 1 to 1000000000", |c| c.time_gran_ns = 1_000_000_001),
        ("max_background", "0", "from 1 to 65535", |c| c.max_background = 0),
        ("congestion_threshold", "0", "from 1 to 65535", |c| c.congestion_threshold = 0),
        ("ring_depth", "65", "from 1 to 64", |c| c.ring_depth = 65),
        ("cpus", "[]", "a CPU or more", |c| c.cpus = vec![None, Some(vec![])]),
        ("cpus", "9999", "of this machine", |c| c.cpus = vec![Some(vec![0, 9999])]),
        ("cpus", "18446744073709551615", "of this machine", |c| {
            c.cpus = vec![Some(vec![usize::MAX])];
        }),
    ];
    for (name, of, range, change) in cases {
        let mut config = SessionConfig::default();
        change(&mut config);
        let (kernel, running) = start(config);
        let error = running.expect_err(name);
        let SessionError::Config { field, value, allowed } = &error else { panic!("{error:?}") };
        assert_eq!((*field, &**value), (name, of));
        assert!(allowed.contains(range), "{error}");
        assert!(error.to_string().starts_with(&format!("{name} is {of}, but must be ")), "{error}");
        assert!(kernel.reply(Duration::ZERO).is_none(), "the handshake was answered");
    }
}

#[test]
fn the_ends_of_each_range_are_taken() {
    for config in [
        SessionConfig { max_write: SessionConfig::MAX_WRITE, ..SessionConfig::default() },
        SessionConfig { max_write: 0, ..SessionConfig::default() },
        SessionConfig { time_gran_ns: 1_000_000_000, ..SessionConfig::default() },
        SessionConfig { cpus: vec![Some(vec![0])], ..SessionConfig::default() },
    ] {
        let (kernel, running) = start(config.clone());
        let agreed = *running.unwrap().connection().negotiated();
        assert_eq!(agreed.max_write, config.max_write.max(4096));
        assert_eq!(agreed.time_gran_ns, config.time_gran_ns);
        assert_eq!(kernel.reply(SOON).unwrap().0.error, 0);
    }
}

/// More of them than may be in flight would never count as congestion.
#[test]
fn a_threshold_above_the_most_in_flight_is_lowered() {
    for (max_background, congestion_threshold, holds) in
        [(64, 48, 48), (16, 48, 16), (1, 60_000, 1)]
    {
        let config =
            SessionConfig { max_background, congestion_threshold, ..SessionConfig::default() };
        let agreed = *start(config).1.unwrap().connection().negotiated();
        assert_eq!((agreed.max_background, agreed.congestion_threshold), (max_background, holds));
    }
}
