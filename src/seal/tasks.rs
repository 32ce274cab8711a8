//! The commands about files.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use tollgate_seal::{Keyring, MasterKeys, SealError, SealedFile};

use crate::cli::{SealCheckArgs, SealConvertArgs, SealExportArgs, SealFilesArgs, SealRotateArgs};
use crate::escape::{in_json, json_text, shown};
use crate::messages;
use crate::seal::attributes::accessed;
use crate::seal::beside;
use crate::seal::domains::Domains;
use crate::seal::files::{self, State};
use crate::seal::job::{Job, Progress};
use crate::seal::replace::{self, Writers};
use crate::seal::ring::{self, Open};
use crate::seal::secret;
use crate::seal::spot::{Spot, path_of};
use crate::seal::temporary_name;
use crate::seal::unfinished;
use crate::seal::work::{self, Found, Others, Top, Where};

/// What came of a file.
enum Done {
    /// It is as it should be now, by what was done.
    Changed,
    /// It was so before.
    AsItWas,
    /// It is none that the command is about.
    LeftOut,
    /// It is plain, and nothing says that it should be sealed.
    Plain,
    /// It was deleted or renamed after it was found.
    Gone,
    /// Its directory is not where it was found.
    WithoutDirectory,
}

const MOVED: &str = "its directory was moved or replaced meanwhile; run this again";

/// What becomes of a plain file where sealed ones are looked for: it was never sealed, or what was
/// sealed has been cut or overwritten.
///
/// # Errors
/// If it should be sealed: by a rule of the policy, or since it lies below a path that was named. A
/// domain alone is no reason, as it says nothing of the files beside its own.
fn plain(found: &Found, file: &File, (top, args): (&Top<'_>, &SealFilesArgs)) -> Result<Done> {
    if args.paths.is_empty() && args.policy.is_none() {
        return Ok(Done::Plain);
    }
    // One that is being made in a view has nothing in it until its first commit.
    replace::refuse_if_written(file)?;
    Err(is_plain(found, top))
}

/// That a sealed file is expected where a plain one is, and how to seal it.
fn is_plain(found: &Found, top: &Top<'_>) -> anyhow::Error {
    let dir = std::fs::canonicalize(path_of(top.dir));
    match dir {
        // As `convert` says it of a path that is named.
        Ok(dir) if !found.real.starts_with(&dir) => anyhow!(
            "is plain, where a sealed file is expected, and not in `{}`, the directory of the keyring: \
             `tollgate seal convert` seals it when it is there",
            shown(&dir)
        ),
        _ => anyhow!("is plain, where a sealed file is expected; `tollgate seal convert` seals it"),
    }
}

pub(super) fn convert(args: &SealConvertArgs) -> Result<()> {
    if args.files.paths.is_empty() && args.files.policy.is_none() {
        bail!("name the files or directories to be sealed, as in `convert --domain vault vault/`");
    }
    let open = Open::of(&args.key)?;
    let (keys, ring) = (open.keys()?, open.ring.clone());
    let top = Top { key: &args.key, dir: &open.directory()? };
    drop(open);
    let which = Where::InDir { to_change: !args.dry_run };
    let results = over_files(&args.files, &top, which, &keys, |found, spot, file, job| {
        if files::state(file, job)? != State::Plain {
            return Ok(Done::AsItWas);
        }
        if is_key(found, file, &ring)? {
            return Ok(Done::LeftOut);
        }
        if found.real.file_name().is_some_and(temporary_name::is_name_of_two) {
            bail!(
                "is plain, and has a name that says which two files it was for, as these commands give \
                 it; rename it"
            );
        }
        if args.dry_run {
            replace::hold(file, Writers::Any)?;
        } else {
            files::convert(spot, file, job)?;
        }
        Ok(Done::Changed)
    })?;
    let verb = if args.dry_run { "to be sealed" } else { "sealed" };
    results.report(args.key.json, verb, "sealed already")
}

/// Whether the plain file `found` is a key file of the keyring, which is left out with a note.
fn is_key(found: &Found, file: &File, ring: &Keyring) -> Result<bool> {
    let is_key = secret::is_key_of(file, ring)?;
    if is_key {
        let name = secret::shown(&found.path);
        messages::note(&format!("{name} is a key file of the keyring; left out"));
    }
    Ok(is_key)
}

pub(super) fn check(args: &SealCheckArgs) -> Result<()> {
    let open = Open::of(&args.key)?;
    let (keys, dir, ring) = (open.keys()?, open.directory()?, open.ring.clone());
    drop(open);
    let top = Top { key: &args.key, dir: &dir };
    let results = over_files(&args.files, &top, Where::Anywhere, &keys, |found, _, file, job| {
        if files::state(file, job)? == State::Plain {
            if is_key(found, file, &ring)? {
                return Ok(Done::LeftOut);
            }
            return Err(is_plain(found, &top));
        }
        whole(&beside::check(file, job)?, file, job)
    })?;
    results.report(args.key.json, "good", "")
}

/// What has all of its content may lack something else, which is no reason to mistrust it.
///
/// # Errors
/// If a copy of its header is not good, or something follows its last block.
fn whole(sealed: &SealedFile<&File>, file: &File, job: &Job<'_>) -> Result<Done> {
    const HEALED: &str = "the next write in a view mends it, and so does `tollgate seal rotate`";
    let both_good =
        || tollgate_seal::stat(&file, job.keys, job.domain).map(|found| found.both_good);
    // A view that writes the file may be writing just that.
    if !both_good()? && !both_good()? {
        bail!(
            "all of its content is good, but one of the two copies of its header is not, as after a \
             crash, or is of an earlier commit than a crash leaves; {HEALED}"
        );
    }
    match sealed.bytes_behind()? {
        0 => Ok(Done::Changed),
        bytes => bail!(
            "all of its content is good, but {bytes} bytes that belong to nothing follow its last \
             block, as after a crash or an append beside the view; `tollgate seal rotate` leaves \
             them out"
        ),
    }
}

pub(super) fn export(args: &SealExportArgs) -> Result<()> {
    let open = Open::of(&args.key)?;
    let (keys, dir) = (open.keys()?, open.directory()?);
    drop(open);
    let top = Top { key: &args.key, dir: &dir };
    let mut results =
        over_files(&args.files, &top, Where::Anywhere, &keys, |found, _, file, job| {
            if files::state(file, job)? == State::Plain {
                return plain(found, file, (&top, &args.files));
            }
            files::export(file, &args.to, &found.below, job)?;
            Ok(Done::Changed)
        })?;
    if let Some(others) = results.others.in_words() {
        let why = "only files are exported; `cp -a` from a view copies all";
        results.notes.push(format!("left out: {others}: {why}"));
    }
    results.report(args.key.json, "written plain", "")
}

/// A new epoch, unless files of older ones are left over from a rotation that was ended.
pub(super) fn rotate(args: &SealRotateArgs) -> Result<()> {
    let mut open = Open::of(&args.key)?;
    let keys = open.keys()?;
    let dir = open.directory()?;
    let top = Top { key: &args.key, dir: &dir };
    let newest = ring::newest(&keys);
    let older = over_files(
        &args.files,
        &top,
        Where::InDir { to_change: true },
        &keys,
        |_, _, file, job| {
            Ok(match files::state(file, job)? {
                // What cannot be done is named below. It does not keep others from a new key.
                State::Sealed(epoch) if epoch < newest => {
                    match replace::hold(file, Writers::Servers) {
                        Ok(_) => Done::Changed,
                        Err(_) => Done::AsItWas,
                    }
                }
                _ => Done::AsItWas,
            })
        },
    )?;
    let goes_on = older.changed > 0;
    if !goes_on {
        make_epoch(&mut open, &top)?;
    } else if !args.key.json {
        println!("going on with epoch {newest}: some files have keys of older ones");
    }
    open.unlock()?;
    let mut keys = open.keys()?;
    let mut results = seal_anew(args, &top, &keys)?;
    // Files are damaged for good. Without a new epoch they would keep others from one for good, too.
    if goes_on && results.changed == 0 && results.has_damage() {
        open.lock_again()?;
        if ring::newest(&open.keys()?) == newest {
            if !args.key.json {
                println!(
                    "a new key is made: no other file has one that is older than epoch {newest}"
                );
            }
            make_epoch(&mut open, &top)?;
        }
        open.unlock()?;
        keys = open.keys()?;
        results = seal_anew(args, &top, &keys)?;
    }
    let newest = ring::newest(&keys);
    results.report(args.key.json, &format!("sealed anew, epoch {newest}"), "of that epoch already")
}

/// # Errors
/// As [`refuse_later`], or if the keyring cannot be written.
fn make_epoch(open: &mut Open, top: &Top<'_>) -> Result<()> {
    refuse_later(top, &open.keys()?)?;
    open.ring.rotate(&open.key)?;
    open.save()
}

/// Has every file have the newest key.
fn seal_anew(args: &SealRotateArgs, top: &Top<'_>, keys: &MasterKeys) -> Result<Results> {
    let newest = ring::newest(keys);
    let which = Where::InDir { to_change: true };
    over_files(&args.files, top, which, keys, |found, spot, file, job| {
        match files::state(file, job)? {
            State::Plain => plain(found, file, (top, &args.files)),
            State::Sealed(epoch) if epoch < newest => {
                files::seal_anew(spot, file, job)?;
                Ok(Done::Changed)
            }
            State::Sealed(_) => Ok(Done::AsItWas),
        }
    })
}

/// # Errors
/// If a file of the ring's directory, also one that is not to be sealed anew, has the key of a later epoch:
/// its number would be given to another key.
fn refuse_later(top: &Top<'_>, keys: &MasterKeys) -> Result<()> {
    for found in work::find(&[], top, Where::InDir { to_change: false })?.found {
        // What cannot be looked at is named where it is to be sealed anew.
        let Ok(file) = unfinished::open(&found.real) else { continue };
        if tollgate_seal::looks_sealed(&file).unwrap_or(false)
            && let Err(SealError::WrongEpoch { found: epoch, given }) =
                tollgate_seal::stat(&file, keys, b"")
            && epoch > given
        {
            bail!(
                "there is no new key: {} is sealed with that of epoch {epoch}, and the newest of the \
                 keyring is that of epoch {given}; put the later keyring back, or remove what is sealed \
                 with its keys",
                shown(&found.path)
            );
        }
    }
    Ok(())
}

/// What came of all files.
#[derive(Default)]
struct Results {
    changed: usize,
    as_they_were: usize,
    left_out: usize,
    plain: usize,
    gone: usize,
    wrong: Vec<(PathBuf, String, bool)>,
    notes: Vec<String>,
    others: Others,
}

fn over_files(
    args: &SealFilesArgs,
    top: &Top<'_>,
    which: Where,
    keys: &MasterKeys,
    each: impl Fn(&Found, &Spot, &File, &Job<'_>) -> Result<Done> + Sync,
) -> Result<Results> {
    let here = path_of(top.dir);
    let domains = Domains::of(args, &here)?;
    let mut all = work::find(&args.paths, top, which)?;
    let progress = Progress::new(work::bytes(&all.found), args.progress);
    let done = work::for_each(&all.found, |found| {
        let spot = match Spot::of(&found.real) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Done::WithoutDirectory);
            }
            spot => spot?,
        };
        // Another one may have been mounted over it, or moved there, since it was listed.
        if spot.directory_key()? != found.directory {
            bail!(MOVED);
        }
        let domain = match domains.of_file(&spot.path(), &found.real) {
            Err(error) if files::is_gone(&error) => return Ok(Done::Gone),
            domain => domain?,
        };
        let Some(domain) = domain else { return Ok(Done::LeftOut) };
        let Some(file) = files::open_unless_gone(&spot)? else { return Ok(Done::Gone) };
        if !files::is_made(&file)? {
            return Ok(Done::Gone);
        }
        let accessed = accessed(&file.metadata()?);
        let (domain, dir, progress) = (domain.as_bytes(), &*here, &progress);
        each(found, &spot, &file, &Job { keys, domain, dir, accessed, progress })
    });
    progress.end();
    if which == (Where::InDir { to_change: true }) {
        unfinished::leave(&here);
    }
    let moved = moved(&all, &done);
    let (notes, kept) = (std::mem::take(&mut all.notes), std::mem::take(&mut all.kept));
    let mut results = Results { notes, others: all.others, ..Results::default() };
    kept.iter().for_each(|(path, why)| results.name(path, why.clone(), false));
    for (path, _) in all.vanished.iter().filter(|(_, key)| moved.contains(key)) {
        let why = "was moved meanwhile, and what is in it is left out; run this again";
        results.name(path, why.to_owned(), false);
    }
    for (file, done) in all.found.iter().zip(done) {
        match done {
            Ok(Done::Changed) => results.changed += 1,
            Ok(Done::AsItWas) => results.as_they_were += 1,
            Ok(Done::LeftOut) => results.left_out += 1,
            Ok(Done::Plain) => results.plain += 1,
            Ok(Done::WithoutDirectory) if moved.contains(&file.directory) => {
                results.name(&file.path, MOVED.to_owned(), false);
            }
            Ok(Done::Gone | Done::WithoutDirectory) => results.gone += 1,
            Err(error) => {
                let damaged = files::is_damage(&error);
                results.name(&file.path, messages::in_words(&error), damaged);
            }
        }
    }
    Ok(results)
}

/// Of the directories that are not where they were, those that are elsewhere.
fn moved(all: &work::All, done: &[Result<Done>]) -> HashSet<work::Key> {
    let files = all.found.iter().zip(done);
    let of_files = files.filter(|(_, done)| matches!(done, Ok(Done::WithoutDirectory)));
    let missing = of_files.map(|(file, _)| file.directory);
    let missing: HashSet<_> = missing.chain(all.vanished.iter().map(|(_, key)| *key)).collect();
    if missing.is_empty() { missing } else { all.moved(&missing) }
}

impl Results {
    /// Names what could not be done, and whether its file is damaged.
    fn name(&mut self, path: &Path, why: String, is_damaged: bool) {
        self.wrong.push((path.to_owned(), why, is_damaged));
    }

    /// Whether a file is damaged.
    fn has_damage(&self) -> bool {
        self.wrong.iter().any(|(_, _, is_damaged)| *is_damaged)
    }

    /// # Errors
    /// If something was wrong with a file.
    fn report(&self, as_json: bool, changed: &str, as_they_were: &str) -> Result<()> {
        self.notes.iter().for_each(|note| messages::note(note));
        if as_json {
            let wrong: Vec<Value> = self
                .wrong
                .iter()
                .map(|(file, error, damaged)| {
                    let mut fields = in_json(file);
                    fields.insert("error".to_owned(), error.as_str().into());
                    fields.insert("damaged".to_owned(), (*damaged).into());
                    fields.into()
                })
                .collect();
            let report = json!({
                "done": self.changed,
                "as_they_were": self.as_they_were,
                "left_out": self.left_out,
                "plain": self.plain,
                "gone": self.gone,
                "wrong": wrong,
            });
            println!("{}", json_text(&report.to_string()));
        } else {
            for (file, error, _) in &self.wrong {
                messages::say(&format!("{}: {error}", shown(file)));
            }
            println!("{} {changed}", messages::count(self.changed, "file"));
            if self.as_they_were > 0 {
                println!("{} {as_they_were}", messages::count(self.as_they_were, "file"));
            }
            if self.left_out > 0 {
                println!("{} left out", messages::count(self.left_out, "file"));
            }
            if self.plain > 0 {
                let plain = messages::count(self.plain, "plain file");
                println!("{plain} left out; `tollgate seal check` names each");
            }
            if self.gone > 0 {
                println!("{} deleted or renamed meanwhile", messages::count(self.gone, "file"));
            }
        }
        match self.wrong.len() {
            0 => Ok(()),
            some => bail!("{} could not be done", messages::count(some, "file")),
        }
    }
}
