//! What each detector masks and what it leaves, from the corpus; how a report and a mask look.

mod corpus;

use corpus::Case;
use tollgate_redact::{Detector, Detectors, Found, OwnRegex, RangeError, Redactor, RegexError};

fn masked(detectors: Detectors, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    Redactor::new(detectors).mask_all(&mut bytes, |_| {});
    String::from_utf8(bytes).expect("text of one-byte characters stays text")
}

/// A place in a short text.
fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("short")
}

/// Every secret of the corpus is masked as marked, and nothing else in its line is.
#[test]
fn the_corpus_of_secrets_is_masked_as_marked() {
    let cases = corpus::secrets();
    assert!(cases.len() > 100, "{}", cases.len());
    let wrong: Vec<_> = cases.iter().filter_map(Case::fault).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// What only looks like a secret stays, for every detector that is on by default.
#[test]
fn the_corpus_of_other_text_stays() {
    let cases = corpus::others();
    assert!(cases.len() > 100, "{}", cases.len());
    let wrong: Vec<_> = cases.iter().filter_map(Case::fault).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn a_secret_in_a_range_is_masked_wherever_the_range_is_cut() {
    let secrets = corpus::secrets();
    for case in secrets.iter().filter(|case| case.text.len() < 400) {
        let text = case.text.as_bytes();
        let redactor = Redactor::new(case.detectors());
        let size = text.len() as u64;
        for cut in 0..=size {
            for range in [0..cut, cut..size] {
                let read = redactor.to_read(range.clone(), size).unwrap();
                let mut buffer = text[at(read.start)..at(read.end)].to_vec();
                let at_end = read.end == size;
                redactor
                    .mask_range(&mut buffer, read.start, at_end, range.clone(), |_| {})
                    .unwrap();
                let place = at(range.start - read.start)..at(range.end - read.start);
                let expected = &case.expected.as_bytes()[at(range.start)..at(range.end)];
                assert_eq!(&buffer[place], expected, "{range:?} of {:?}", case.text);
            }
        }
    }
}

#[test]
fn a_report_names_detector_kind_and_place() {
    let mut text = b"a ghp_0123456789abcdefghijABCDEFGHIJ012345 b".to_vec();
    let redactor = Redactor::new(Detectors::default());
    let mut reports = Vec::new();
    redactor.mask_all(&mut text, |Found { rule, kind, bytes, .. }| {
        reports.push((rule.to_string(), kind, bytes));
    });
    assert_eq!(reports, [("token".to_owned(), Some("GitHub"), 6..42)]);
}

/// The carriage return of a line end of two bytes is no value.
#[test]
fn a_value_of_a_dotenv_counts_once_whatever_ends_its_line() {
    let redactor = Redactor::new(Detectors::only(&[Detector::Env]));
    let found = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        let mut found = Vec::new();
        redactor.mask_all(&mut bytes, |one| found.push(text[one.bytes].to_owned()));
        found
    };
    let text = "A=\"secret12\"\nB='other345' \nC=plain\nD=\"x1\"y2\nE=\"\"\n";
    let expected = ["secret12", "other345", "plain", "x1", "y2"];
    assert_eq!(found(text), expected);
    assert_eq!(found(&text.replace('\n', "\r\n")), expected);
}

#[test]
fn line_breaks_stay() {
    let key =
        "-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEAx0\r\nAAAA\n-----END PRIVATE KEY-----\n";
    let expected =
        "-----BEGIN PRIVATE KEY-----\n******************\r\n****\n-----END PRIVATE KEY-----\n";
    assert_eq!(masked(Detectors::only(&[Detector::PrivateKey]), key), expected);
}

/// A key that is far longer than what is looked at before a range: each of its lines is masked,
/// also in a range that no beginning is near to.
#[test]
fn a_key_of_any_length_is_masked_in_every_range() {
    let line = "MIIEpAIBAAKCAQEAx0+/synthetic/only/AAAAaaaa0000bbbbCCCC111122220\n";
    let head = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2.2\nComment: x.y\n\n";
    let text = format!("{head}{}-----END PGP PRIVATE KEY BLOCK-----\nend\n", line.repeat(6000));
    let redactor = Redactor::new(Detectors::only(&[Detector::PrivateKey]));
    let size = text.len() as u64;
    for start in (0..size).step_by(4096) {
        let range = start..size.min(start + 4096);
        let read = redactor.to_read(range.clone(), size).unwrap();
        let mut buffer = text.as_bytes()[at(read.start)..at(read.end)].to_vec();
        let at_end = read.end == size;
        redactor.mask_range(&mut buffer, read.start, at_end, range.clone(), |_| {}).unwrap();
        let shown = &buffer[at(start - read.start)..][..at(range.end - start)];
        let shown = String::from_utf8_lossy(shown);
        assert!(!shown.contains("MIIE") && !shown.contains("CCCC"), "{range:?}: {shown}");
    }
}

#[test]
fn a_web_token_of_any_length_is_masked_to_its_end() {
    let long = "aB3_".repeat(10_000);
    let text = format!("t=eyJhbGciOiJub25lIn0.{long}.{long} end");
    let shown = masked(Detectors::only(&[Detector::Jwt]), &text);
    assert!(shown.starts_with("t=eyJ****") && shown.ends_with("**** end"), "{}", &shown[..40]);
    assert!(!shown.contains("aB3"));
}

#[test]
fn base64_of_a_long_file_of_json_is_no_web_token() {
    // A file of several lines, and the source map `{"version":3,"file":"x.js","sourceRoot":"","sources":[...`.
    let map = "eyJ2ZXJzaW9uIjozLCJmaWxlIjoieC5qcyIsInNvdXJjZVJvb3QiOiIiLCJzb3VyY2VzIjpbIi4uL3NyYy94LnRzIl0s";
    for start in ["ewogICJhIjog", map] {
        let text = format!("\"{start}{}\"", "aB3_".repeat(3000));
        let shown = masked(Detectors::only(&[Detector::Jwt]), &text);
        assert!(shown.starts_with(&text[..8000]), "{}", &shown[..40]);
    }
}

/// Such as one with certificates in it (`x5c`): it is masked before its end is known.
#[test]
fn a_web_token_with_a_long_header_is_masked() {
    for start in ["eyJhbGciOiJIUzI1NiIs", "eyJ4NWMiOlsi", "eyAiYWxnIjogIkhT"] {
        let text = format!("t={start}{}", "aB3_".repeat(3000));
        let shown = masked(Detectors::only(&[Detector::Jwt]), &text);
        assert_eq!(shown, format!("t={}{}", &start[..3], "*".repeat(text.len() - 5)));
    }
}

#[test]
fn a_file_beyond_the_limit_is_refused_and_a_buffer_that_is_too_short_too() {
    let redactor = Redactor::new(Detectors::default()).with_file_max(1000);
    assert!(redactor.to_read(0..10, 1000).is_ok());
    let error = redactor.to_read(0..10, 1001).unwrap_err();
    assert_eq!(error, RangeError::FileTooLarge { size: 1001, max: 1000 });
    assert!(error.to_string().contains("1001 bytes"), "{error}");

    let mut buffer = [b'x'; 100];
    let error = redactor.mask_range(&mut buffer, 0, false, 0..100, |_| {}).unwrap_err();
    assert!(matches!(error, RangeError::NotEnough { .. }), "{error}");
    assert!(redactor.mask_range(&mut buffer, 50, true, 60..70, |_| {}).is_err());
    assert!(redactor.mask_range(&mut buffer, 0, true, 0..101, |_| {}).is_err());
    assert!(redactor.mask_range(&mut buffer, 0, true, 0..100, |_| {}).is_ok());
}

#[test]
fn own_expressions_are_matched_at_every_place_and_at_line_ends() {
    let own = |regex: &str| Detectors::only(&[]).and_own(OwnRegex::new("own", regex).unwrap());
    assert_eq!(masked(own("aba|bab"), "xabababx"), "x******x");
    assert_eq!(masked(own("^id=[0-9]{1,9}$"), "id=12\nid=13 \nid=14"), "*****\nid=13 \n*****");
    assert_eq!(
        masked(own(r"\bkey\b"), "key keys\u{e9} key\u{e9} key"),
        "*** keys\u{e9} key\u{e9} ***"
    );
}

#[test]
fn expressions_without_a_bound_are_refused_with_the_reason() {
    let refused = |regex: &str| OwnRegex::new("own", regex).unwrap_err();
    assert!(matches!(refused("a+"), RegexError::Unbounded { .. }));
    assert!(matches!(refused("[a&&b]"), RegexError::Never { .. }));
    assert!(matches!(refused("a{1,5000}"), RegexError::TooLong { length: 5000, .. }));
    assert!(matches!(refused("a?"), RegexError::Empty { .. }));
    assert!(matches!(refused(r"\Aab"), RegexError::TextEnds { .. }));
    assert!(matches!(refused("("), RegexError::Syntax { .. }));
    assert!(refused("a+").to_string().contains("{0,100}"));
}

#[test]
fn detectors_have_names() {
    for detector in Detector::ALL {
        assert_eq!(detector.name().parse(), Ok(detector));
    }
    let error = "tokens".parse::<Detector>().unwrap_err().to_string();
    assert!(error.contains("`tokens`") && error.contains("url-password"), "{error}");
}
