//! The kernel, its FUSE module, and what else of it Tollgate can use.

use std::fs::File;

use tollgate_topology::Topology;

use super::check::{Check, State, line_of};
use crate::sys;

pub(super) fn checks() -> Vec<Check> {
    let proc = proc();
    let mut checks = vec![release(), device()];
    if proc.state == State::Broken {
        checks.push(proc);
        return checks;
    }
    checks.extend([io_uring(), filter(), landlock(), proc, cpus(), huge_pages()]);
    checks
}

/// Passthrough came with Linux 6.9.
const PASSTHROUGH: (u32, u32) = (6, 9);

fn release() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match version(&release) {
        Some(version) if version < PASSTHROUGH => Check::without(
            "kernel",
            format!("Linux {release}"),
            "no passthrough: files are served by tollgate, slower",
        )
        .mended_by("Linux 6.9 or later"),
        _ => Check::ok("kernel", format!("Linux {release}")),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn device() -> Check {
    let opened = File::options().read(true).write(true).open("/dev/fuse");
    match opened {
        Ok(_) => Check::ok("/dev/fuse", "can be opened"),
        Err(error) => {
            let remedy = match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                    "modprobe fuse\nin a container: start it with `--device /dev/fuse`"
                }
                Some(libc::EACCES) => "chmod 666 /dev/fuse (as root), or run as root",
                Some(libc::EPERM) => {
                    "the device cgroup forbids it: start the container with `--device /dev/fuse`"
                }
                _ => "see what the error says",
            };
            Check::broken("/dev/fuse", format!("cannot be opened: {error}")).mended_by(remedy)
        }
    }
}

/// Requests come over io_uring where that is switched on.
fn io_uring() -> Check {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    match line_of(SWITCH).as_deref() {
        Some("Y") => Check::ok(
            "FUSE over io_uring",
            "switched on, and used (`--transport devfuse` does without)",
        ),
        Some(_) => Check::note(
            "FUSE over io_uring",
            format!(
                "switched off; several programs at once are faster with it (echo Y > {SWITCH})"
            ),
        ),
        None => Check::note("FUSE over io_uring", "not in this kernel (Linux 6.14 has it)"),
    }
}

fn filter() -> Check {
    match line_of("/proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.contains("errno") => {
            Check::ok("seccomp", "system calls can be filtered")
        }
        _ => Check::broken("seccomp", "system calls cannot be filtered")
            .mended_by("a kernel with CONFIG_SECCOMP_FILTER"),
    }
}

/// Signals and abstract sockets are scoped from version 6 on.
const SCOPES: u32 = 6;

fn landlock() -> Check {
    const EFFECT: &str = "CMD can send signals to processes outside of its pid namespace that share \
                          its process group, and connect to abstract sockets";
    match sys::landlock_version() {
        Ok(version) if version >= SCOPES => Check::ok("Landlock", format!("version {version}")),
        Ok(version) => {
            Check::without("Landlock", format!("version {version}, without scopes"), EFFECT)
                .mended_by("Linux 6.12 or later")
        }
        Err(error) => Check::without("Landlock", format!("not available: {error}"), EFFECT)
            .mended_by("boot with `landlock` in the list `lsm=`, in Linux 6.12 or later"),
    }
}

fn proc() -> Check {
    match std::fs::read_link("/proc/self") {
        Ok(_) => Check::ok("/proc", "mounted"),
        Err(error) => Check::broken("/proc", format!("cannot be read: {error}"))
            .mended_by("mount -t proc proc /proc"),
    }
}

fn cpus() -> Check {
    match Topology::current() {
        Ok(topology) => {
            let nodes: std::collections::BTreeSet<_> =
                topology.cpus().iter().filter_map(|cpu| topology.node_of(cpu)).collect();
            let all = topology.cpus().len();
            let usable = topology.allowed().len();
            let text = format!("{usable} of {all} may be used, NUMA nodes: {}", nodes.len().max(1));
            Check::ok("CPUs", text)
        }
        Err(error) => {
            let effect = "threads are not placed near their CPUs";
            Check::without("CPUs", format!("sysfs cannot be read: {error}"), effect)
                .mended_by("mount -t sysfs sysfs /sys")
        }
    }
}

/// Only programs that are built with the crates use them.
fn huge_pages() -> Check {
    let setting = line_of("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = setting.as_deref().and_then(|all| all.split(['[', ']']).nth(1));
    let reserved = line_of("/proc/sys/vm/nr_hugepages").unwrap_or_else(|| "0".to_owned());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let locked = limit.map_or("without limit".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    let text = format!(
        "transparent: {}, reserved: {reserved}, memory that may be locked: {locked}",
        chosen.unwrap_or("not in this kernel")
    );
    Check::note("huge pages", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version("5.4.0"), Some((5, 4)));
        assert!(version("6.8").unwrap() < PASSTHROUGH && version("6.10").unwrap() > PASSTHROUGH);
        assert_eq!(version("x"), None);
    }
}
