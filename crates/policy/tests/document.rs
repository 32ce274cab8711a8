//! The policies in `docs/policy.md` are policies.

use tollgate_policy::Policy;

#[test]
fn examples_can_be_read() {
    let page = include_str!("../../../docs/policy.md");
    let mut examples = 0;
    for (number, block) in page.split("```toml\n").skip(1).enumerate() {
        let text = block.split("```").next().unwrap();
        let policy = Policy::parse(text, "docs/policy.md").unwrap_or_else(|e| panic!("{e}"));
        assert!(policy.warnings().is_empty(), "example {number}: {}", policy.warnings()[0]);
        examples += 1;
    }
    assert_eq!(examples, 8);
}
