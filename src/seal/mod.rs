//! `tollgate seal`: keyrings, and files that are encrypted at rest.

mod attributes;
mod beside;
mod domains;
mod files;
mod job;
mod locked;
mod replace;
mod ring;
mod secret;
mod spot;
mod tasks;
mod temporary_name;
mod terminal;
mod unfinished;
mod work;

use anyhow::Result;

use crate::cli::SealCommand;

pub(crate) use ring::{IN_DIR, LOCK_IN_DIR, keys_of};
pub(crate) use secret::files as secret_files;
pub(crate) use unfinished::IN_DIR as NEW_IN_DIR;

pub(crate) fn run(command: &SealCommand) -> Result<()> {
    match command {
        SealCommand::Init(args) => ring::init(args),
        SealCommand::Add(args) => ring::add(args),
        SealCommand::Passwd(args) => ring::passwd(args),
        SealCommand::Rotate(args) => tasks::rotate(args),
        SealCommand::Check(args) => tasks::check(args),
        SealCommand::Convert(args) => tasks::convert(args),
        SealCommand::Export(args) => tasks::export(args),
    }
}
