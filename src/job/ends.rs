//! The two ends of a job as a person names them: which directories to read,
//! where they land, and whether that makes sense.
//!
//! rsync's rule: `a/` is the contents of `a`, `a` is itself.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use nix::fcntl::OFlag;

use super::{Backup, Choices, Dedup, Dest, Options, Order, Reflink, Start};
use crate::backup;
use crate::dest::references::{self, References};
use crate::error::{During, Error, Failure, Op};
use crate::filter::Filter;
use crate::plan::preflight::{self, Room};
use crate::plan::{Kind, Plan};
use crate::report::Counters;
use crate::sys::beneath::Root;
use crate::sys::metadata::Stat;
use crate::sys::mounts::{self, Mount};

mod arguments;

use arguments::{Argument, canonical, landing, look, parent, start, will_be};

/// Sources and destination, opened as far as they exist.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) starts: Vec<Start>,
    /// The destination, if it is a directory already.
    pub(super) dest: Option<Dest>,
    /// Where the destination's root is or will be.
    root: PathBuf,
    mkpath: bool,
    /// The root only holds the name that a single file gets.
    renames: bool,
    /// Canonical paths of what is read.
    read: Vec<PathBuf>,
    mounts: Vec<Mount>,
    references: References,
}

impl Ends {
    pub(super) fn resolve(
        sources: &[PathBuf],
        dest: Option<&Path>,
        options: &Options,
        mounts: &[Mount],
    ) -> Result<Ends, Error> {
        if options.dedup != Dedup::None && options.reflink == Reflink::Always {
            return Err(Error::Refused(
                "--dedup has to see the bytes, which --reflink=always does not read: leave one of them"
                    .into(),
            ));
        }
        let listed = options.filter.files.is_some();
        if listed && sources.len() != 1 {
            return Err(Error::Refused(
                "--files-from lists paths of one source: name one directory".into(),
            ));
        }
        if listed && options.delete {
            return Err(Error::Refused(
                "--delete would remove what --files-from does not list: leave one of them".into(),
            ));
        }
        if sources.is_empty() {
            return Err(Error::Refused(
                "there is nothing to copy: name a source".into(),
            ));
        }
        // What is listed lies below the source, whose name is no part of it.
        let contents: Vec<PathBuf> = sources.iter().map(|path| path.join("")).collect();
        let sources = if listed { &contents } else { sources };
        let arguments = sources
            .iter()
            .map(|path| look(path))
            .collect::<Result<Vec<_>, _>>()?;
        let (root, rename) = match dest {
            Some(dest) => landing(&arguments, dest)?,
            None => (PathBuf::new(), None),
        };
        let starts = arguments
            .iter()
            .map(|argument| start(argument, rename.as_deref()))
            .collect::<Result<Vec<_>, _>>()?;
        let read = arguments
            .iter()
            .map(canonical)
            .collect::<Result<Vec<_>, _>>()?;
        let mut ends = Ends {
            starts,
            dest: None,
            root,
            mkpath: options.mkpath,
            renames: rename.is_some(),
            read,
            mounts: mounts.to_vec(),
            references: References::default(),
        };
        if dest.is_some() {
            ends.refuse_overlap(&arguments)?;
            if let Some(backup) = &options.backup {
                backup::check(backup, &ends.root)?;
                ends.refuse_backups_among_entries(backup, &options.filter)?;
            }
            ends.references = references::open(&options.link_dest, &ends.root)?;
            ends.dest = ends.open_dest(options)?;
            if ends.dest.is_none() && options.existing {
                return Err(Error::Refused(format!(
                    "\"{}\" does not exist, and --existing makes nothing new",
                    ends.root.display()
                )));
            }
        }
        Ok(ends)
    }

    /// Takes out the sources that a filter leaves out.
    pub(super) fn leave_out(&mut self, filter: &Filter, counters: &Counters) {
        let takes = |start: &Start| {
            let below = &start.source.below;
            match &start.only {
                Some(name) => filter.takes(name, false),
                None => below.is_empty() || filter.takes(below, true),
            }
        };
        let found = self.starts.len();
        self.starts.retain(takes);
        let left_out = (found - self.starts.len()) as u64;
        counters.excluded.fetch_add(left_out, Relaxed);
    }

    fn open_dest(&self, options: &Options) -> Result<Option<Dest>, Error> {
        match Dest::open(&self.root, options) {
            Ok(dest) => Ok(Some(self.referring(dest))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let needed: &Path = if self.renames {
                    &self.root
                } else {
                    parent(&self.root)
                };
                if !self.mkpath && !needed.is_dir() {
                    return Err(Error::Refused(format!(
                        "\"{}\" does not exist: make it, or let --mkpath do it (a typo in a mount point would fill the wrong disk)",
                        needed.display()
                    )));
                }
                Ok(None)
            }
            Err(e) => Err(Failure::new(Op::Open, &self.root, e).into()),
        }
    }

    /// Copying into itself would never end, or overwrite what is read.
    fn refuse_overlap(&self, arguments: &[Argument<'_>]) -> Result<(), Error> {
        let dest = will_be(&self.root)?;
        for ((argument, start), from) in arguments.iter().zip(&self.starts).zip(&self.read) {
            if argument.kind != Kind::Dir {
                continue;
            }
            let below = OsStr::from_bytes(&start.source.below);
            let target = if below.is_empty() {
                dest.clone()
            } else {
                dest.join(below)
            };
            if self.is_at_or_inside(&target, from) || self.is_at_or_inside(&dest, from) {
                return Err(if self.is_at_or_inside(from, &target) {
                    Error::Same(argument.path.to_path_buf())
                } else {
                    Error::Inside {
                        from: argument.path.to_path_buf(),
                        to: self.root.clone(),
                    }
                });
            }
        }
        Ok(())
    }

    /// A backup must not take the place of what is read, nor of what is made.
    /// One that filters leave out is nobody's.
    fn refuse_backups_among_entries(&self, backup: &Backup, filter: &Filter) -> Result<(), Error> {
        let Some(dir) = &backup.dir else {
            return Ok(());
        };
        let refuse = |why: &str| {
            let dir = dir.display();
            Err(Error::Refused(format!(
                "--backup-dir \"{dir}\" {why}: choose another"
            )))
        };
        let path = references::resolve(dir, &self.root);
        if leads_back(&path) {
            return refuse("leads back out of a directory that does not exist");
        }
        let (target, dest) = (will_be(&path)?, will_be(&self.root)?);
        for (start, from) in self.starts.iter().zip(&self.read) {
            if start.only.is_none() && self.is_at_or_inside(&target, from) {
                return refuse("is in a source, which is only read");
            }
            // Backups of `DEST/x` would be made at `DIR/x`, which is read.
            let is_among_backups = from
                .strip_prefix(&target)
                .is_ok_and(|below| self.root.join(below).is_dir());
            if is_among_backups {
                return refuse("has a source where backups would be made");
            }
            if let Ok(at) = target.strip_prefix(&dest)
                && has_entry(start, at)
                && filter.takes(at.as_os_str().as_bytes(), true)
            {
                return refuse("is an entry of a source as well");
            }
        }
        Ok(())
    }

    /// By path, and by the place within the filesystem: a bind mount shows one
    /// directory under two paths.
    fn is_at_or_inside(&self, path: &Path, of: &Path) -> bool {
        if path.starts_with(of) {
            return true;
        }
        match (
            mounts::place(&self.mounts, path),
            mounts::place(&self.mounts, of),
        ) {
            (Some((dev, place)), Some((of_dev, of_place))) => {
                dev == of_dev && place.starts_with(of_place)
            }
            _ => false,
        }
    }

    /// Whether everything is read from disks that do not seek and surely fits,
    /// so that nothing needs to be known before the first byte is copied.
    pub(super) fn overlap(&self, choices: &Choices, options: &Options) -> Result<bool, Error> {
        if !matches!(options.order, Order::Auto | Order::None) {
            return Ok(false);
        }
        for (start, path) in self.starts.iter().zip(&self.read) {
            let stat = Stat::of(&start.source.root).during(Op::Stat, &start.source.path)?;
            let below = mounts::below(&self.mounts, path).map(|mount| mount.dev);
            for dev in std::iter::once(stat.dev).chain(below) {
                if choices.of(dev).order != Order::None {
                    return Ok(false);
                }
            }
        }
        Ok(options.force || preflight::fits_surely(&self.read, &self.room()?, &self.mounts))
    }

    /// Room at the destination, or where it will be made; what a killed run left
    /// of the same files counts as free.
    pub(super) fn room(&self) -> Result<Room, Error> {
        if let Some(dest) = &self.dest {
            let mut room = preflight::room(dest.root.as_fd()).during(Op::Stat, &dest.path)?;
            let parts_bytes = dest.parts_bytes.load(Relaxed);
            room.free_bytes = room.free_bytes.saturating_add(parts_bytes);
            return Ok(room);
        }
        let mut at = self.root.as_path();
        loop {
            at = parent(at);
            match Root::open(at) {
                Ok(root) => return Ok(preflight::room(root.as_fd()).during(Op::Stat, at)?),
                Err(e) if e.kind() == io::ErrorKind::NotFound && at != parent(at) => {}
                Err(e) => return Err(Failure::new(Op::Open, at, e).into()),
            }
        }
    }

    /// The destination as it will be, where it is missing and earlier copies are
    /// to be asked: what they have is not copied.
    pub(super) fn foresee(&self, options: &Options) -> Result<Option<Dest>, Error> {
        if self.dest.is_some() || self.references.is_empty() {
            return Ok(None);
        }
        let mut at = self.root.as_path();
        loop {
            at = parent(at);
            match Dest::open(at, options) {
                Ok(dest) => return Ok(Some(self.referring(dest).foreseen())),
                Err(e) if e.kind() == io::ErrorKind::NotFound && at != parent(at) => {}
                Err(e) => return Err(Failure::new(Op::Open, at, e).into()),
            }
        }
    }

    /// Whether all files of the plan will share their extents with the copies.
    pub(super) fn can_share(&self, plan: &Plan, options: &Options) -> Result<bool, Error> {
        if options.reflink == Reflink::Never || options.dedup != Dedup::None {
            return Ok(false);
        }
        // Nothing may be made before it is known that it fits; where the
        // destination will be made answers as well.
        let shares = match &self.dest {
            Some(dest) => try_shares(dest, plan),
            None => Dest::open(parent(&self.root), options).is_ok_and(|d| try_shares(&d, plan)),
        };
        if !shares && options.reflink == Reflink::Always && plan.has_content() {
            return Err(cannot_share(&self.root));
        }
        Ok(shares)
    }

    fn referring(&self, mut dest: Dest) -> Dest {
        dest.references = self.references.clone();
        dest
    }

    /// Opens the destination, made now if it is missing.
    pub(super) fn make_dest(&mut self, options: &Options) -> Result<Dest, Error> {
        if let Some(dest) = self.dest.take() {
            return Ok(dest);
        }
        self.make_root(options).map(|dest| self.referring(dest))
    }

    fn make_root(&self, options: &Options) -> Result<Dest, Error> {
        let mode = options.dest_mode.unwrap_or(0o755);
        let above = parent(&self.root);
        if self.mkpath {
            let mut parents = fs::DirBuilder::new();
            parents.mode(mode).recursive(true);
            parents.create(above).during(Op::Create, above)?;
        }
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        match builder.create(&self.root) {
            // Another run was quicker: then it is there, and not ours.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Ok(Dest::open(&self.root, options).during(Op::Open, &self.root)?);
            }
            made => made.during(Op::Create, &self.root)?,
        }
        Dest::open(&self.root, options)
            .and_then(Dest::made_now)
            .during(Op::Create, &self.root)
            .map_err(Error::from)
    }
}

/// Whether a source has an entry that lands at a path below the destination.
fn has_entry(start: &Start, at: &Path) -> bool {
    let source = &start.source;
    if let Some(name) = &start.only {
        let name = source.rename.as_ref().unwrap_or(name);
        return at.as_os_str().as_bytes() == &name[..];
    }
    let below = OsStr::from_bytes(&source.below);
    at.strip_prefix(below).is_ok_and(|at| {
        let flags = OFlag::O_PATH;
        let looked = source.root.at(at.as_os_str().as_bytes(), flags);
        looked.is_ok()
    })
}

/// Whether `..` follows a name that is not there: where that leads is known
/// only when it is made.
fn leads_back(path: &Path) -> bool {
    let mut at = path;
    while !at.exists() && parent(at) != at {
        if at.file_name().is_none() {
            return true;
        }
        at = parent(at);
    }
    false
}

fn cannot_share(path: &Path) -> Error {
    Error::Refused(format!(
        "--reflink=always: the filesystem of \"{}\" cannot share extents with the source",
        path.display()
    ))
}

/// Tries a file of each device; whether all can be shared.
pub(super) fn try_shares(dest: &Dest, plan: &Plan) -> bool {
    let mut tried = vec![None; plan.listing.devices.len()];
    for (i, entry) in (0..).zip(&plan.listing.entries) {
        let device = usize::from(entry.device);
        if !entry.is_to_read() || entry.size == 0 || tried[device].is_some() {
            continue;
        }
        if let Ok(file) = crate::work::read::open(&plan.listing, i) {
            tried[device] = Some(dest.can_share(plan.listing.devices[device], &file));
        }
    }
    let mut tried = tried.into_iter().flatten().peekable();
    tried.peek().is_some() && tried.all(|shares| shares)
}
