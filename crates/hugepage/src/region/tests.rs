use super::*;
use crate::thp::Thp;
use tollgate_topology::NodeId;

/// Held by tests that count reserved huge pages, or reserve some.
pub(crate) static HUGETLB: std::sync::Mutex<()> = std::sync::Mutex::new(());

const MIB: usize = 1 << 20;

fn thp_is_on() -> bool {
    !matches!(Machine::current().thp(), Thp::Never | Thp::Absent)
}

#[test]
fn bad_sizes_are_refused_by_name() {
    assert!(matches!(Region::options(0).map(), Err(Error::Zero { .. })));
    let error = Region::options(4097).map().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a region of 4097 bytes is not a multiple of 4096: the next one is 8192"
    );
    let absurd = 1 << 60;
    let error = Region::options(absurd).map().unwrap_err();
    assert!(matches!(error, Error::TooLarge { bytes, .. } if bytes == absurd), "{error}");
    let error = Region::options(MIB).exactly(Backing::Thp).map().unwrap_err();
    assert!(matches!(error, Error::ShorterThanPage { .. }), "{error}");
    let error = Region::options(MIB).ladder(&[]).map().unwrap_err();
    assert_eq!(error.to_string(), "a ladder without a backing: give it one at least");
}

#[test]
fn a_node_that_is_not_there_is_named() {
    let error = Region::options(MIB).bind_node(NodeId(77)).map().unwrap_err();
    assert!(matches!(error, Error::NoSuchNode { node: NodeId(77), .. }), "{error}");
    let region = Region::options(MIB).bind_node(NodeId(0)).map().unwrap();
    assert_eq!(region.as_slice(), vec![0; MIB]);
}

#[test]
fn a_page_size_that_is_not_there_is_named() {
    let odd = Backing::Hugetlb { page_bytes: 3 * 4096 };
    let error = Region::options(12288).exactly(odd).map().unwrap_err();
    assert!(error.to_string().contains("12288 bytes are not available here"), "{error}");
}

#[test]
fn every_way_to_fault_in_gives_writable_zeroes_on_huge_pages() {
    let touches = [Prefault::Touch(TouchAt::First), Prefault::Touch(TouchAt::Last)];
    for prefault in touches.into_iter().chain([Prefault::Populate, Prefault::Lazy]) {
        let options = Region::options(4 * MIB + 8192).prefault(prefault);
        let mut region = options.ladder(&[Backing::Thp, Backing::Base]).map().unwrap();
        assert!(region.as_slice().iter().all(|byte| *byte == 0));
        region.as_mut_slice().fill(7);
        assert!(region.as_slice().iter().all(|byte| *byte == 7));
        let report = region.report().to_string();
        if thp_is_on() {
            assert_eq!(region.report().backing, Backing::Thp, "{report}");
            assert_eq!(region.start().as_ptr() as usize % HUGE_2M, 0);
            let expected = (prefault != Prefault::Lazy).then_some(4 * MIB);
            let short = matches!(
                region.report().fallbacks.as_slice(),
                [Fallback { reason: Error::ThpShort { .. }, .. }]
            );
            assert!(region.report().huge_bytes == expected || short, "{prefault:?}: {report}");
        }
    }
}

#[test]
fn base_pages_are_base_pages() {
    let region = Region::options(4 * MIB).exactly(Backing::Base).map().unwrap();
    assert_eq!(region.report().backing, Backing::Base);
    assert_eq!(region.huge_bytes().unwrap(), 0);
}

#[test]
fn thp_never_falls_back_to_base_pages_and_says_how_to_switch_it_on() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("sys/kernel/mm/transparent_hugepage");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("enabled"), "always madvise [never]\n").unwrap();
    let options = Region::options(2 * MIB).machine(Machine::at(root.path()));
    let region = options.map().unwrap();
    assert_eq!(region.report().backing, Backing::Base);
    let reasons: Vec<String> =
        region.report().fallbacks.iter().map(|fallback| fallback.reason.to_string()).collect();
    assert!(reasons[0].contains("this kernel has none"), "{reasons:?}");
    assert!(reasons[1].contains("set to never") && reasons[1].contains("echo madvise"));
}

#[test]
fn exhausted_hugetlb_names_the_sysctl_and_falls_back() {
    let _alone = HUGETLB.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let machine = Machine::current();
    let Ok(pool) = machine.reserved(HUGE_2M) else { return };
    let pages = pool.available() + 1;
    let options = Region::options(pages * HUGE_2M).prefault(Prefault::Lazy);
    let error =
        options.clone().exactly(Backing::Hugetlb { page_bytes: HUGE_2M }).map().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NotReserved { .. }), "{text}");
    assert!(text.contains(&format!("`sysctl vm.nr_hugepages={}`", pool.total + 1)), "{text}");
    let region = options.map().unwrap();
    assert_ne!(region.report().backing, Backing::Hugetlb { page_bytes: HUGE_2M });
    assert!(matches!(region.report().fallbacks[0].reason, Error::NotReserved { .. }));
}

#[test]
fn secrets_pass_over_hugetlb_with_the_reason() {
    let region = Region::options(4 * MIB).secret().map().unwrap();
    let first = &region.report().fallbacks[0];
    assert!(first.reason.to_string().starts_with("MADV_WIPEONFORK is not supported on hugetlb"));
}

#[test]
fn regions_cross_threads() {
    let mut region = Region::options(8192).exactly(Backing::Base).map().unwrap();
    let region = std::thread::spawn(move || {
        region.as_mut_slice()[5] = 9;
        region
    });
    assert_eq!(region.join().unwrap().as_slice()[5], 9);
}
