//! How a server of this user would keep CPUs awake, and what lets it do so as root's does.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tollgate_haltpoll::{KeepAwake, Means, Mode, State, Status};

use super::check::Check;
use crate::accounts;

const NAME: &str = "keep-awake";
const DEVICE: &str = "/dev/cpu_dma_latency";
/// What the package brings.
const GROUP: &str = "tollgate";
const RULE: &str = "/usr/lib/udev/rules.d/70-tollgate.rules";
/// A measurement takes 0.2 s; one that others disturbed is made again after that.
const PATIENCE: Duration = Duration::from_millis(700);

pub(super) fn check() -> Check {
    said(&decided(), &Machine::read())
}

/// What a server decides here, or the state after some time.
fn decided() -> Status {
    let (awake, start) = (KeepAwake::start(Mode::Auto), Instant::now());
    while awake.status().state == State::Measuring && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    awake.status()
}

/// How far the administrator has come.
#[derive(Debug)]
struct Machine {
    user: String,
    /// The group that may write the device, with those who are listed as its members.
    group: Option<(String, Vec<String>)>,
    has_rule: bool,
}

impl Machine {
    fn read() -> Self {
        const GROUP_WRITES: u32 = 0o020;
        // Without the group that the rule names, udev leaves the device to root's.
        let group = std::fs::metadata(DEVICE)
            .ok()
            .filter(|meta| meta.mode() & GROUP_WRITES != 0 && meta.gid() != 0)
            .and_then(|meta| accounts::members(meta.gid()));
        let uid = rustix::process::getuid().as_raw();
        let user = accounts::name_of_user(uid).unwrap_or_else(|| "NAME".to_owned());
        Self { user, group, has_rule: Path::new(RULE).exists() }
    }

    fn remedy(&self) -> String {
        let user = &self.user;
        match &self.group {
            Some((group, members)) if members.contains(user) => {
                format!("log in again: `{user}` is in the group `{group}`, and this session is not")
            }
            Some((group, _)) => format!("usermod -aG {group} {user} (as root), and log in again"),
            None if self.has_rule => format!(
                "systemd-sysusers tollgate.conf && udevadm control --reload && \
                 udevadm trigger --name-match=cpu_dma_latency && usermod -aG {GROUP} {user} \
                 (as root), and log in again"
            ),
            None => format!(
                "install the package, which brings the group `{GROUP}` and a rule for udev \
                 (docs/broker.md)"
            ),
        }
    }
}

fn said(status: &Status, machine: &Machine) -> Check {
    let reason = &status.reason;
    match status.state {
        State::Ready(Means::Latency) => Check::ok(NAME, format!("by the kernel: {reason}")),
        State::Ready(Means::Pollers) if status.lacks_permission => Check::without(
            NAME,
            format!("by polling threads: {reason}"),
            "waking a CPU takes longer than for root, who has the kernel keep them awake",
        )
        .mended_by(machine.remedy()),
        State::Ready(Means::Pollers) => Check::note(NAME, format!("by polling threads: {reason}")),
        State::Off => Check::note(NAME, format!("not done: {reason}")),
        State::Measuring if reason.is_empty() => Check::note(NAME, "not measured in time"),
        State::Measuring => Check::note(NAME, format!("not decided: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::State as Found;

    fn status(state: State, lacks_permission: bool) -> Status {
        let reason = "waking a CPU costs 22.0 us".to_owned();
        Status { state, reason, lacks_permission, ..KeepAwake::start(Mode::Off).status() }
    }

    fn machine(group: Option<&[&str]>, has_rule: bool) -> Machine {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let group = group.map(|members| ("tollgate".to_owned(), names(members)));
        Machine { user: "ann".to_owned(), group, has_rule }
    }

    #[test]
    fn who_lacks_permission_alone_is_told_the_next_step() {
        let told = |group, has_rule| {
            let status = status(State::Ready(Means::Pollers), true);
            let check = said(&status, &machine(group, has_rule));
            assert_eq!(check.state, Found::Without);
            assert!(check.found.ends_with("costs 22.0 us") && check.effect.is_some(), "{check:?}");
            check.remedy.unwrap()
        };
        let usermod = "usermod -aG tollgate ann (as root), and log in again";
        assert_eq!(told(Some(&["bob"]), true), usermod);
        // Whoever gave the device to the group.
        assert_eq!(told(Some(&[]), false), usermod);
        assert!(told(Some(&["bob", "ann"]), true).starts_with("log in again: `ann`"));
        let all = told(None, true);
        assert!(all.starts_with("systemd-sysusers ") && all.ends_with(usermod), "{all}");
        assert!(told(None, false).starts_with("install the package"));
    }

    #[test]
    fn nobody_else_is_advised() {
        for (state, found) in [
            (State::Ready(Means::Latency), Found::Ok),
            (State::Ready(Means::Pollers), Found::Note),
            (State::Off, Found::Note),
            (State::Measuring, Found::Note),
        ] {
            let check = said(&status(state, false), &machine(None, true));
            assert_eq!((check.state, check.effect, check.remedy), (found, None, None));
        }
    }
}
