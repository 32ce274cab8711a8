//! `[[view]]`: further directories, each with rules of its own.

use toml::de::DeTable;

use super::{body, values};
use crate::error::{PolicyError, Problem, Source};
use crate::limits::MAX_VIEWS;
use crate::policy_file::ViewEntry;

/// The entries of a policy file, in their order.
pub(super) fn entries(
    source: &Source<'_>,
    table: &DeTable<'_>,
) -> Result<Vec<ViewEntry>, PolicyError> {
    let Some(value) = table.get("view") else { return Ok(Vec::new()) };
    let wrong_type = |value: &values::Value<'_>| {
        let found = values::type_name(value.get_ref());
        let allowed = "tables, each headed `[[view]]`";
        source.error(value.span(), Problem::Type { key: "view", found, allowed })
    };
    let Some(list) = value.get_ref().as_array() else { return Err(wrong_type(value)) };
    let mut entries: Vec<ViewEntry> = Vec::new();
    for one in list {
        let Some(table) = one.get_ref().as_table() else { return Err(wrong_type(one)) };
        if entries.len() == MAX_VIEWS {
            return Err(source.error(one.span(), Problem::TooManyViews));
        }
        let keys = [&["dir"], body::KEYS].concat();
        values::check_keys(source, table, "a `[[view]]`", &keys)?;
        let Some(value) = table.get("dir") else {
            return Err(source.error(one.span(), Problem::ViewWithoutDir));
        };
        let Some(dir) = value.get_ref().as_str() else {
            let found = values::type_name(value.get_ref());
            let allowed = "a string, as in `dir = \"~/notes\"`";
            return Err(source.error(value.span(), Problem::Type { key: "dir", found, allowed }));
        };
        if !is_whole(dir) {
            let problem = Problem::ViewDir { dir: dir.to_owned() };
            return Err(source.error(value.span(), problem));
        }
        if let Some(first) = entries.iter().find(|entry| components(&entry.dir).eq(components(dir)))
        {
            let problem = Problem::SecondView { dir: dir.to_owned(), first: first.line };
            return Err(source.error(value.span(), problem));
        }
        let place = source.place(one.span());
        entries.push(ViewEntry {
            dir: dir.to_owned(),
            line: place.line,
            column: place.column,
            policy: body::policy(source, table)?,
        });
    }
    Ok(entries)
}

/// Whether a path means the same from everywhere.
fn is_whole(dir: &str) -> bool {
    let from_top = dir == "~" || dir.starts_with("~/") || dir.starts_with('/');
    let is_top = dir.starts_with('/') && components(dir).next().is_none();
    from_top && !is_top && !dir.contains('\0') && components(dir).all(|part| part != "..")
}

/// What a path is made of, however many slashes there are: `~` or the names below `/`.
fn components(dir: &str) -> impl Iterator<Item = &str> {
    dir.split('/').filter(|part| !matches!(*part, "" | "."))
}

#[cfg(test)]
mod tests {
    use crate::{NoNames, Operation, PolicyFile, Verdict};

    fn parse(text: &str) -> Result<PolicyFile, String> {
        PolicyFile::parse_with(text, "p.toml", &NoNames).map_err(|error| error.to_string())
    }

    #[test]
    fn each_view_has_rules_and_a_default_of_its_own() {
        let file = parse(
            "default = \"deny\"\n[[view]]\ndir = \"~\"\n[[view.rule]]\npath = \".ssh/**\"\n\
             action = \"hide\"\n  [[view]]\ndir = \"/srv/data\"\ndefault = \"read-only\"\n",
        )
        .unwrap();
        let [home, data] = &file.views[..] else { panic!("{:?}", file.views) };
        assert_eq!((home.dir.as_str(), home.line, home.column), ("~", 2, 1));
        assert_eq!((data.dir.as_str(), data.line, data.column), ("/srv/data", 7, 3));
        assert_eq!(home.policy.rules().len(), 1);
        let default = |policy: &crate::Policy| policy.default_action().verdict(Operation::Write);
        assert_eq!(default(&file.policy), Verdict::Deny);
        assert_eq!(default(&home.policy), Verdict::Allow);
        assert_eq!(default(&data.policy), Verdict::ReadOnly);
        assert!(parse("").unwrap().views.is_empty());
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, part) in [
            (
                "view = 3",
                "p.toml:1:8: `view` is an integer; allowed: tables, each headed `[[view]]`",
            ),
            ("[[view]]\ndefault = \"deny\"", "p.toml:1:1: `[[view]]` without `dir`"),
            ("[[view]]\ndir = 3", "p.toml:2:7: `dir` is an integer; allowed: a string"),
            ("[[view]]\ndir = \"notes\"", "p.toml:2:7: `dir = \"notes\"` of a `[[view]]`"),
            ("[[view]]\ndir = \"~/a/../b\"", "without `..`"),
            ("[[view]]\ndir = \"~me\"", "begins with `/` or `~/`"),
            (
                "[[view]]\ndir = \"~\"\n[[view]]\ndir = \"~\"",
                "p.toml:4:7: second `[[view]]` of `~`",
            ),
            (
                "[[view]]\ndir = \"/a\"\n[[view]]\ndir = \"//a/./\"",
                "p.toml:4:7: second `[[view]]` of `//a/./`; the first is on line 1",
            ),
            ("[[view]]\ndir = \"~/\"\n[[view]]\ndir = \"~\"", "second `[[view]]` of `~`"),
            ("[[view]]\ndir = \"//\"", "not `/` itself"),
            ("[[view]]\ndir = \"/a\\u0000b\"", "`dir = \"/a\\0b\"` of a `[[view]]`"),
            ("[[view]]\ndir = \"~\"\nrules = 3", "unknown key `rules` in a `[[view]]`"),
            ("[[view]]\ndir = \"~\"\n[[view.view]]\ndir = \"/a\"", "unknown key `view`"),
            ("[[view]]\ndir = \"~\"\ndefault = \"hide\"", "the default cannot be `hide`"),
            ("[[view]]\ndir = \"~\"\n[[view.rule]]\npath = \"x\"", "rule without `action`"),
        ] {
            let error = parse(text).map(drop).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many: String =
            (0..9).map(|number| format!("[[view]]\ndir = \"/{number}\"\n")).collect();
        assert!(parse(&many).map(drop).unwrap_err().contains("p.toml:17:1: more than 8"));
    }
}
