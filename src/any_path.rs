//! Paths in JSON: a string, or the list of its bytes where they are not UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => text.serialize(to),
        None => path.as_os_str().as_bytes().serialize(to),
    }
}

pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(path(Written::deserialize(from)?))
}

fn path(written: Written) -> PathBuf {
    match written {
        Written::Text(text) => text.into(),
        Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
    }
}

/// A list of such paths.
pub(crate) mod list {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Written;

    #[derive(Serialize)]
    struct One<'p>(#[serde(with = "super")] &'p Path);

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| One(path)))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let all = Vec::<Written>::deserialize(from)?;
        Ok(all.into_iter().map(super::path).collect())
    }
}
