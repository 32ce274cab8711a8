//! The reader of audit logs.

#[path = "../../src/audit/read.rs"]
pub(crate) mod read;

/// Reads `data` as a log: nothing panics, no line is longer than the limit, all of the input is used.
pub fn fuzz_one(data: &[u8]) {
    let mut from = std::io::BufReader::with_capacity(64, data);
    let (mut buffer, mut lines) = (Vec::new(), 0_usize);
    while let Some(fits) = read::next_line(&mut from, &mut buffer).expect("memory can be read") {
        lines += 1;
        assert!(buffer.len() <= read::MAX_LINE && (fits || buffer.is_empty()));
        if let Ok(line) = read::parse(&buffer) {
            assert!(fits && line.events() >= u64::from(line.event != "repeated"));
            let _ = (line.is_about_files(), line.is_refusal());
        }
    }
    let ends = data.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, ends + usize::from(data.last().is_some_and(|byte| *byte != b'\n')));
}
