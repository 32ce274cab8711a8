//! Two requests at a time.

use libc::{O_RDWR, O_TRUNC, O_WRONLY};
use tollgate_fuse::InitFlags;
use tollgate_fuse::abi::{OpenIn, Rename2In, opcode};
use zerocopy::IntoBytes;

use crate::kernel::{Played, ROOT, c_string};

/// One in some hundred is met on its way.
const FILES: usize = 3_000;

/// Its name may change between the look by which it is judged and the one by which it is opened.
#[test]
fn a_file_opens_for_writing_while_it_is_renamed() {
    for policy in ["", "[[rule]]\npath = 'secret'\naction = 'deny'\n"] {
        let names: Vec<_> = (0..FILES).map(|n| n.to_string()).collect();
        let files: Vec<_> = names.iter().map(|name| (name.as_str(), "text")).collect();
        let view = Played::served_by(2, policy, &files, InitFlags::all(), |config| config);
        let mut failures = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let node = view.node(name);
            let flags = [O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC][n % 3];
            let open = OpenIn { flags: flags.cast_unsigned(), open_flags: 0 };
            let opening = view.send(opcode::OPEN, node, &[open.as_bytes()]);
            let rename = Rename2In { newdir: ROOT, flags: 0, padding: 0 };
            let moved = [c_string(name), c_string(&format!("{name}-moved"))].concat();
            view.send(opcode::RENAME2, ROOT, &[rename.as_bytes(), moved.as_slice()]);
            for (unique, answer) in [view.answer(), view.answer()] {
                let what = if unique == opening { "open" } else { "rename" };
                failures.extend(answer.err().map(|error| format!("{what} {n}: {error}")));
            }
        }
        assert_eq!(failures, Vec::<String>::new(), "{policy}");
        view.end();
    }
}
