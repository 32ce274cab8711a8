//! Access control lists in a user namespace that knows one user and one group.
//!
//! The kernel refuses a whole list (`EINVAL`, on each access to the file) if it names a user or group
//! that the mount's user namespace does not map. An entry for somebody else never decides about the
//! one user who is there, and a server in such a namespace opens with that user's own rights below.
//! So what names others is left out of what the kernel is told.
//!
//! A list is a version and entries of eight bytes: a tag and permissions of 16 bits, an id of 32, all
//! little-endian (acl(5), `linux/posix_acl_xattr.h`).

use std::ffi::CStr;

const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;

pub(crate) fn is_acl(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"system.posix_acl_")
}

/// Whether the list `value` names a user or group other than `ids`. Something else than a list names nobody.
pub(crate) fn names_others(value: &[u8], ids: (u32, u32)) -> bool {
    entries(value).is_some_and(|mut entries| entries.any(|entry| is_of_other(entry, ids)))
}

/// The list `value` without what names others than `ids`; as it is if it is no list.
pub(crate) fn without_others(value: &[u8], ids: (u32, u32)) -> Vec<u8> {
    match entries(value) {
        None => value.to_vec(),
        Some(entries) => {
            let kept = entries.filter(|entry| !is_of_other(entry, ids));
            value[..HEAD].iter().chain(kept.flatten()).copied().collect()
        }
    }
}

fn entries(value: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let (version, entries) = value.split_first_chunk::<HEAD>()?;
    let is_list = u32::from_le_bytes(*version) == VERSION && entries.len().is_multiple_of(ENTRY);
    is_list.then(|| entries.chunks_exact(ENTRY))
}

fn is_of_other(entry: &[u8], (uid, gid): (u32, u32)) -> bool {
    let [tag, tag_high, _, _, id @ ..] = entry else { return false };
    let id = id.try_into().map_or(0, u32::from_le_bytes);
    match u16::from_le_bytes([*tag, *tag_high]) {
        USER => id != uid,
        GROUP => id != gid,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut list = VERSION.to_le_bytes().to_vec();
        for (tag, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(6u16.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        list
    }

    #[test]
    fn entries_of_others_are_left_out_and_the_mask_stays() {
        const NONE: u32 = u32::MAX;
        let (owner, group, mask, other) = ((1, NONE), (4, NONE), (0x10, NONE), (0x20, NONE));
        let ids = (1000, 100);
        let own = list(&[owner, (USER, 1000), group, (GROUP, 100), mask, other]);
        assert!(!names_others(&own, ids));
        assert_eq!(without_others(&own, ids), own);
        let more =
            [owner, (USER, 7), (USER, 1000), (USER, 1001), group, (GROUP, 100), (GROUP, 1000)];
        let all = list(&[&more[..], &[mask, other]].concat());
        assert!(names_others(&all, ids));
        assert_eq!(without_others(&all, ids), own);
    }

    #[test]
    fn what_is_no_list_stays_as_it_is() {
        for bytes in [
            &b""[..],
            b"\x02\0\0",
            b"\x03\0\0\0\x02\0\x06\0\x07\0\0\0",
            b"\x02\0\0\0\x02\0\x06\0\x07",
        ] {
            assert!(!names_others(bytes, (1, 1)));
            assert_eq!(without_others(bytes, (1, 1)), bytes);
        }
    }
}
