//! `--delete`: removes from the destination what no source has.
//!
//! It comes after the copy. In the destination's directories that stand for
//! source directories which were listed to their end, every name that no source
//! has goes, with all that is below. Where anything is doubtful, nothing is
//! removed: after a failure on the source's side, or where it would be more
//! than `--max-delete` allows, which is counted first.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::fcntl::OFlag;

use crate::dest::{Dest, DirRef};
use crate::error::{Failure, Op};
use crate::job::Options;
use crate::plan::{Action, Kind, Plan, There};
use crate::report::{Note, Outcome};
use crate::sys::metadata::Stat;
use crate::work::run::{Run, lock};
use crate::work::spot::Spot;

mod find;
mod keeps;
mod walk;

use find::find;
use keeps::Keeps;

/// What happens to a name that nothing keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// It is told, and stays.
    Tell,
    /// It is removed, and told.
    Remove,
}

/// What is told of one entry.
enum Told {
    Gone(PathBuf),
    Failed(Failure),
}

/// What removing needs to know.
struct Mirror<'a> {
    dest: &'a Dest,
    does: Does,
    keeps: Keeps<'a>,
    /// Nothing more is begun once it is set.
    stop: &'a AtomicBool,
}

/// Removes what no source has; gives a note where that was not to be done.
pub(crate) fn extraneous(run: &Run<'_>, dirs: &[DirRef]) -> Option<Note> {
    if !run.options.delete {
        return None;
    }
    run.counters.enter("delete");
    count_what_made_way(run, dirs);
    let failed = run.failures_that(|f| f.op.is_on_source());
    if let Some(note) = hindrance(run.options, failed, dirs, run.is_stopped()) {
        return Some(note);
    }
    let mut mirror = Mirror {
        dest: run.dest,
        does: Does::Tell,
        keeps: Keeps::new(run.options, run.dest, dirs),
        stop: run.stop(),
    };
    if let Some(most) = run.options.max_delete {
        let gone = run.counters.deleted.load(Relaxed);
        let mut count = gone;
        let mut uncounted = None;
        find(&mirror, dirs, &mut |told| match told {
            Told::Gone(_) => count += 1,
            // What stays by our own word is told below; what the kernel does
            // not let us see could be any number.
            Told::Failed(failure) if failure.source.raw_os_error().is_none() => {}
            Told::Failed(failure) => uncounted = Some(failure),
        });
        if let Some(failure) = uncounted {
            run.failed(failure.detail("so --max-delete cannot count, and nothing was deleted"));
            return None;
        }
        if count > most {
            run.failed(too_many(&run.dest.path, count, gone, most));
            return None;
        }
    }
    mirror.does = Does::Remove;
    find(&mirror, dirs, &mut |told| match told {
        Told::Gone(path) => run.counters.count(Outcome::Deleted, || path),
        Told::Failed(failure) => run.failed(failure),
    });
    None
}

/// Counts what has made way for entries of another kind. Directories that
/// nothing was copied into are made now: what is in their way counts as well.
fn count_what_made_way(run: &Run<'_>, dirs: &[DirRef]) {
    for dir in dirs.iter().filter(|dir| dir.there == There::Blocked) {
        if !run.is_stopped() && dir.is_entry() && dir.made.get().is_none() {
            // What goes wrong is kept with the directory, and told when that
            // gets its metadata.
            drop(run.dest.dir(dir));
        }
    }
    let cleared = std::mem::take(&mut *lock(&run.dest.cleared));
    for path in cleared {
        run.counters.count(Outcome::Deleted, || path);
    }
}

/// Removes the directory that is in the way of an entry, under the same
/// conditions; tells whether it is gone.
pub(crate) fn clear(spot: &Spot<'_>) -> Result<bool, Failure> {
    let (run, dest) = (spot.run, spot.run.dest);
    let is_spoiled = dest.spoiled.load(Relaxed) && !run.options.ignore_errors;
    if is_spoiled || run.is_stopped() {
        return Ok(false);
    }
    let mut root = &spot.dir;
    while let Some(parent) = &root.parent {
        root = parent;
    }
    let mut mirror = Mirror {
        dest,
        does: Does::Tell,
        keeps: Keeps::new(run.options, dest, std::slice::from_ref(root)),
        stop: run.stop(),
    };
    let below = spot.dir.relative_dest();
    let entry = walk::Entry {
        name: spot.name.into(),
        is_dir: true,
    };
    if mirror.keeps.name(&walk::below(&below, spot.name), true) {
        return Ok(false);
    }
    // Held to the end: no two may take the last that --max-delete allows.
    let mut cleared = lock(&dest.cleared);
    if let Some(most) = run.options.max_delete {
        let gone = cleared.len() as u64;
        let mut count = gone;
        walk::take(&mirror, spot.fd, &below, &entry, &mut |told| {
            count += u64::from(matches!(told, Told::Gone(_)));
        });
        if count > most {
            return Err(too_many(&spot.path(), count, gone, most));
        }
    }
    mirror.does = Does::Remove;
    walk::take(&mirror, spot.fd, &below, &entry, &mut |told| match told {
        Told::Gone(path) => cleared.push(path),
        Told::Failed(failure) => run.failed(failure),
    });
    Ok(Stat::at(spot.fd, spot.name).is_err())
}

/// Puts into a plan what would be removed.
pub(crate) fn foresee(dest: &Dest, options: &Options, stop: &AtomicBool, plan: &mut Plan) {
    if !options.delete {
        return;
    }
    let failed = plan.failures.iter().filter(|f| f.op.is_on_source()).count();
    let dirs = &plan.listing.dirs;
    let stopped = stop.load(Relaxed);
    if let Some(note) = hindrance(options, failed, dirs, stopped) {
        plan.notes.push(note);
        return;
    }
    let mirror = Mirror {
        dest,
        does: Does::Tell,
        keeps: Keeps::new(options, dest, dirs),
        stop,
    };
    let mut failures = Vec::new();
    let deletions = &mut plan.deletions;
    find(&mirror, dirs, &mut |told| match told {
        Told::Gone(path) => deletions.push(path),
        Told::Failed(failure) => failures.push(failure),
    });
    for path in in_the_way(&mirror, plan) {
        plan.deletions.push(path);
    }
    plan.failures.append(&mut failures);
    let count = plan.deletions.len() as u64;
    if let Some(most) = options.max_delete.filter(|&most| count > most) {
        plan.failures.push(too_many(&dest.path, count, 0, most));
        plan.deletions.clear();
    }
}

/// What will make way for an entry of another kind.
fn in_the_way(mirror: &Mirror<'_>, plan: &Plan) -> Vec<PathBuf> {
    let (dest, listing) = (mirror.dest, &plan.listing);
    let mut gone = Vec::new();
    for dir in &listing.dirs {
        let above = dir.parent.as_ref().map(|parent| parent.there);
        if dir.there == There::Blocked && above == Some(There::Dir) {
            gone.push(dir.dest_path_of(&dest.path, b""));
        }
    }
    let replaced = listing.entries.iter().filter(|entry| entry.exists());
    for entry in
        replaced.filter(|e| matches!(e.action, Action::Copy | Action::Refer | Action::Link))
    {
        let (dir, name) = (listing.dir(entry), listing.name(entry));
        let name = dir.dest_name(name);
        let below = dir.relative_dest();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        // What cannot be opened is told by the copy.
        let Ok(fd) = dest.root.at(&below, flags) else {
            continue;
        };
        if Stat::at(&fd, name).is_ok_and(|there| there.kind() == Kind::Dir) {
            let entry = walk::Entry {
                name: name.into(),
                is_dir: true,
            };
            walk::take(mirror, &fd, &below, &entry, &mut |told| {
                if let Told::Gone(path) = told {
                    gone.push(path);
                }
            });
        }
    }
    gone
}

/// Why nothing may be removed.
fn hindrance(options: &Options, failed: usize, dirs: &[DirRef], stopped: bool) -> Option<Note> {
    let incomplete = dirs.iter().filter(|dir| dir.is_incomplete).count();
    let doubts = failed.max(incomplete) as u64;
    if stopped {
        return Some(Note {
            count: dirs.len() as u64,
            text: "not cleaned by --delete, because the copy did not come to its end".into(),
        });
    }
    (doubts > 0 && !options.ignore_errors).then(|| Note {
        count: doubts,
        text: "could not be read in the sources, so --delete removed nothing (--ignore-errors lets it)"
            .into(),
    })
}

/// `gone` of them have made way for entries before they could all be counted.
fn too_many(path: &Path, count: u64, gone: u64, most: u64) -> Failure {
    let rest = if gone == 0 { "none" } else { "no more" };
    let why = format!(
        "{count} entries are in no source, more than --max-delete={most}: {rest} was deleted"
    );
    Failure::because(Op::Remove, path, why)
}
