//! What a package must say about the program: the processor that it is for, and the C library.

use anyhow::{Context, bail, ensure};

/// Names of the C library's versions, as they stand in a program.
const VERSIONS: &str = "GLIBC_2.";

/// Debian's name for the architecture of an ELF file.
///
/// # Errors
/// When it is no ELF file for Linux on x86-64 or AArch64.
pub(crate) fn architecture(program: &[u8]) -> anyhow::Result<&'static str> {
    ensure!(program.starts_with(b"\x7fELF\x02\x01"), "it is no 64-bit little-endian ELF file");
    match program.get(18..20) {
        Some([62, 0]) => Ok("amd64"),
        Some([183, 0]) => Ok("arm64"),
        _ => bail!("it is for another processor than x86-64 and AArch64"),
    }
}

/// The packages that the program needs to run.
///
/// # Errors
/// When it is not linked to the GNU C library.
pub(crate) fn depends(program: &[u8]) -> anyhow::Result<String> {
    let minor = minors(program).max();
    let minor = minor.context("it is not linked to the GNU C library")?;
    Ok(format!("libc6 (>= 2.{minor}), libgcc-s1"))
}

/// The number N of each GLIBC_2.N in the program.
fn minors(program: &[u8]) -> impl Iterator<Item = u32> {
    let wanted = VERSIONS.as_bytes();
    program.windows(wanted.len()).enumerate().filter(move |(_, found)| *found == wanted).filter_map(
        move |(at, _)| {
            let rest = &program[at + wanted.len()..];
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        let program = b"x\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_2.\0";
        assert_eq!(depends(program).unwrap(), "libc6 (>= 2.34), libgcc-s1");
        assert!(depends(b"static").is_err());
    }

    #[test]
    fn other_files_are_refused() {
        assert!(architecture(b"#!/bin/sh").is_err());
        let mut program = b"\x7fELF\x02\x01".to_vec();
        program.resize(20, 0);
        assert!(architecture(&program).unwrap_err().to_string().contains("another processor"));
        program[18] = 62;
        assert_eq!(architecture(&program).unwrap(), "amd64");
    }
}
