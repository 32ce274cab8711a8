//! Files that have no effect in the view, and run with another's rights outside.

use std::fs;

use crate::project::{Project, can_mount, text};

/// What CMD gives the bits by, and the name that the file has at the end.
const GIVEN: [(&str, &str); 8] = [
    ("cp /bin/true a; chmod 4755 a", "a"),
    ("cp /bin/true a; chmod 2755 a; mkdir d; mv a d/b", "d/b"),
    ("mkdir d; cp /bin/true d/a; chmod u+s d/a; mv d e", "e/a"),
    ("install -m 6755 /bin/true a; ln a b; rm a", "b"),
    (r#"python3 -c 'import os; os.close(os.open("a", os.O_CREAT | os.O_WRONLY, 0o4755))'"#, "a"),
    (r#"python3 -c 'import os; os.mknod("a", 0o104755)'"#, "a"),
    (
        r#"cp /bin/true a; python3 -c 'import os, struct
os.setxattr("a", "security.capability", struct.pack("<5I", 0x02000001, 128, 0, 0, 0))'"#,
        "a",
    ),
    ("cp /bin/true .env; chmod 4755 .env; cp /bin/true a; chmod 4755 a", "a"),
];

/// What is none, or is none any more.
const NOT_GIVEN: [&str; 6] = [
    "cp /bin/true a; chmod 755 a",
    "cp /bin/true a; chmod 4755 a; rm a",
    "cp /bin/true a; chmod 4755 a; chmod 755 a",
    "mkdir -m 2775 d; chmod g+s d",
    "touch a; chmod 2644 a",
    "chmod 4755 a 2>/dev/null; cat older >b",
];

#[test]
fn files_with_another_s_rights_are_named_at_the_end() {
    if !can_mount() {
        return;
    }
    let said_of = |script: &str| {
        let project = Project::new();
        fs::write(project.path("dir/before"), "").unwrap();
        project.sh("cp /bin/true older; chmod 4755 older");
        std::thread::sleep(std::time::Duration::from_millis(100));
        let output = project.sh(script);
        text(&output.stderr)
    };
    for (script, name) in GIVEN {
        let said = said_of(script);
        let named = format!("or capabilities: `{name}`. Outside");
        assert!(said.contains(&named), "{script}: {said}");
    }
    for script in NOT_GIVEN {
        let said = said_of(script);
        assert!(!said.contains("capabilities"), "{script}: {said}");
    }
}
