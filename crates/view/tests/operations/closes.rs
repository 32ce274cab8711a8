//! Requests that only a close stands in the way of: they wait for it, and nobody waits for them. The
//! view has one thread that serves. What a request overtakes is told by the order of the answers.

use libc::{O_RDONLY, O_TRUNC};
use rustix::io::Errno;
use tollgate_fuse::abi::{GetattrIn, InterruptIn, OpenIn, ReleaseIn, Rename2In, opcode};
use zerocopy::IntoBytes;

use crate::kernel::{Handle, Played, ROOT, c_string};

/// `FMODE_EXEC`, which the kernel sends along for who executes the file.
const TO_EXECUTE: i32 = 0x20;

const POLICY: &str = "
[[rule]]
path = 'watched'
action = 'userspace'
";

fn view() -> Played {
    Played::with(POLICY, &[("program", "text"), ("watched/other", "")])
}

/// Asks to empty the program; the request's number.
fn ask_to_empty(view: &Played, node: u64) -> u64 {
    let flags = (O_RDONLY | O_TRUNC).cast_unsigned();
    view.send(opcode::OPEN, node, &[OpenIn { flags, open_flags: 0 }.as_bytes()])
}

/// Asks to move the file to a name with a stricter mode; the request's number.
fn ask_to_rename(view: &Played) -> u64 {
    let args = Rename2In { newdir: view.node("watched"), flags: 0, padding: 0 };
    let names = [c_string("program"), c_string("program")].concat();
    view.send(opcode::RENAME2, ROOT, &[args.as_bytes(), names.as_slice()])
}

/// Closes `handle`; the request's number.
fn ask_to_release(view: &Played, handle: Handle) -> u64 {
    let args = ReleaseIn { fh: handle.number, ..ReleaseIn::default() };
    view.send(opcode::RELEASE, handle.node, &[args.as_bytes()])
}

fn ask_for_attributes(view: &Played) -> u64 {
    view.send(opcode::GETATTR, ROOT, &[GetattrIn::default().as_bytes()])
}

/// The errors of two requests that were sent, in the order of the requests, and whether the second
/// was answered first.
fn two_answers(view: &Played, first: u64, second: u64) -> ([Option<Errno>; 2], bool) {
    let mut answers = [(); 2].map(|()| view.answer());
    let overtaken = answers[0].0 == second;
    if overtaken {
        answers.reverse();
    }
    assert_eq!(answers.each_ref().map(|(unique, _)| *unique), [first, second]);
    (answers.map(|(_, answer)| answer.err()), overtaken)
}

/// On a machine that is busy enough a wait may be over before anything else is done: once is
/// enough.
fn once(scene: impl Fn(&Played) -> bool) {
    assert!((0..20).any(|_| scene(&view())), "not once in 20 times");
}

#[test]
fn who_would_empty_a_program_waits_for_its_end() {
    once(|view| {
        let runs = view.open("program", O_RDONLY | TO_EXECUTE).unwrap();
        let asked = ask_to_empty(view, runs.node);
        let released = ask_to_release(view, runs);
        let (errors, _) = two_answers(view, asked, released);
        if errors == [Some(Errno::TXTBSY), None] {
            return false;
        }
        assert_eq!(errors, [None, None]);
        assert_eq!(std::fs::read(view.below("program")).unwrap(), b"");
        true
    });
}

#[test]
fn who_would_empty_a_program_that_runs_on_is_refused_after_the_others() {
    once(|view| {
        let runs = view.open("program", O_RDONLY | TO_EXECUTE).unwrap();
        let asked = ask_to_empty(view, runs.node);
        let other = ask_for_attributes(view);
        let (errors, overtaken) = two_answers(view, asked, other);
        assert_eq!(errors, [Some(Errno::TXTBSY), None]);
        assert_eq!(std::fs::read(view.below("program")).unwrap(), b"text");
        overtaken
    });
}

/// An open ends with that; rename(2) is not ended by signals, and goes on as if there were no time
/// to wait.
#[test]
fn a_signal_ends_the_wait() {
    once(|view| {
        let runs = view.open("program", O_RDONLY | TO_EXECUTE).unwrap();
        let open = ask_to_empty(view, runs.node);
        view.send(opcode::INTERRUPT, 0, &[InterruptIn { unique: open }.as_bytes()]);
        let (unique, opened) = view.answer();
        assert_eq!(unique, open);
        let rename = ask_to_rename(view);
        view.send(opcode::INTERRUPT, 0, &[InterruptIn { unique: rename }.as_bytes()]);
        assert_eq!(view.answer(), (rename, Err(Errno::XDEV)));
        opened == Err(Errno::INTR)
    });
}

#[test]
fn a_rename_to_a_stricter_name_waits_for_the_close() {
    once(|view| {
        let open = view.open("program", O_RDONLY).unwrap();
        let asked = ask_to_rename(view);
        let released = ask_to_release(view, open);
        let (errors, _) = two_answers(view, asked, released);
        if errors == [Some(Errno::XDEV), None] {
            return false;
        }
        assert_eq!(errors, [None, None]);
        assert_eq!(std::fs::read(view.below("watched/program")).unwrap(), b"text");
        let counts = view.counts();
        assert_eq!((counts.change_names, counts.refused_weakening), (1, 0));
        true
    });
}

#[test]
fn a_rename_of_a_file_that_stays_open_is_refused_after_the_others() {
    once(|view| {
        let _open = view.open("program", O_RDONLY).unwrap();
        let asked = ask_to_rename(view);
        let other = ask_for_attributes(view);
        let (errors, overtaken) = two_answers(view, asked, other);
        assert_eq!(errors, [Some(Errno::XDEV), None]);
        assert!(view.below("program").exists());
        overtaken
    });
}

/// More than may wait are served at once, and all are answered.
#[test]
fn requests_beyond_the_maximum_do_not_wait() {
    let view = view();
    let runs = view.open("program", O_RDONLY | TO_EXECUTE).unwrap();
    let waiting = || {
        let mut shares = view.view().snapshot().shares.into_iter();
        shares.find(|share| share.of == "requests that wait for closes").unwrap()
    };
    let mut asked: Vec<_> = (0..400).map(|_| ask_to_empty(&view, runs.node)).collect();
    let mut answered: Vec<_> = asked.iter().map(|_| view.answer()).collect();
    answered.sort_unstable_by_key(|(unique, _)| *unique);
    asked.sort_unstable();
    let busy = asked.into_iter().map(|unique| (unique, Err(Errno::TXTBSY)));
    assert!(answered.into_iter().eq(busy));
    let status = waiting();
    assert!(status.refused > 0, "{status:?}");
    view.release(runs);
    view.opens("program", O_RDONLY | O_TRUNC);
    assert_eq!(std::fs::read(view.below("program")).unwrap(), b"");
}

#[test]
fn the_session_ends_while_requests_wait() {
    let view = view();
    let runs = view.open("program", O_RDONLY | TO_EXECUTE).unwrap();
    for _ in 0..8 {
        ask_to_empty(&view, runs.node);
    }
    let last = ask_for_attributes(&view);
    while view.answer().0 != last {}
    view.end();
}
