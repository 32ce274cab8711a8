//! The arguments of `tollgate broker`, and of `--broker`.

use std::path::PathBuf;

use clap::Args;

pub(super) const BROKER_EXAMPLES: &str = "\
Examples:
  systemctl enable --now tollgate-broker.socket      for every user, started when it is needed
  tollgate broker --user-group dev                   for members of the group dev, until Ctrl-C
  tollgate broker --socket /run/user/1000/tollgate/broker.sock

The kernel lets only root register a file for passthrough. This process does it for others, and
registers nothing that the caller could not read and write without it: regular files, open for
reading and writing, on file systems that hold data. docs/broker.md has the list and the protocol.";

#[derive(Debug, Args)]
pub(crate) struct BrokerArgs {
    /// Where to listen, in a directory that is there; not with a socket that systemd hands over
    #[arg(long, value_name = "PATH", default_value = tollgate_broker::DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,

    /// Serve members of this group only, and root; left out, everybody
    #[arg(long, value_name = "NAME")]
    pub(crate) user_group: Option<String>,

    /// Files that one connection may have registered at a time, and on average in a second
    #[arg(long, value_name = "N", default_value_t = 16_384,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) max_files: u32,
}

/// `--broker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BrokerChoice {
    /// If this process may not register files itself, and one listens where they do.
    Auto,
    /// None.
    Off,
    /// The one that listens here.
    At(PathBuf),
}

impl std::str::FromStr for BrokerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            path if path.contains('/') => Ok(Self::At(path.into())),
            _ => Err("expected auto, off or the path of a socket (`./NAME` for one here)".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_from_a_word() {
        assert_eq!("auto".parse(), Ok(BrokerChoice::Auto));
        assert_eq!("off".parse(), Ok(BrokerChoice::Off));
        assert_eq!("./off".parse(), Ok(BrokerChoice::At("./off".into())));
        assert!("on".parse::<BrokerChoice>().is_err());
        assert!("".parse::<BrokerChoice>().is_err());
    }
}
