//! What comes when all content is there: hard links, then the metadata of the
//! directories, deepest first (a directory that must end read-only is written
//! to until then, and every name made in it changes its mtime).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::dest::compare::is_up_to_date;
use crate::dest::made;
use crate::error::{During, Failure, Op};
use crate::plan::{Dir, Kind, Listing, Role, There};
use crate::report::Outcome;
use crate::sys::metadata::{Stat, Target};
use crate::sys::xattrs::Place;
use crate::verify::file as check;
use crate::work::read;
use crate::work::run::{Follower, Leader, Run, lock};
use crate::work::spot::Spot;
use crate::work::write::{Near, make_special};

/// Gives every inode its further names.
pub(crate) fn links(run: &Run<'_>) {
    let followers = std::mem::take(&mut *lock(&run.followers));
    let mut leaders = std::mem::take(&mut *lock(&run.leaders));
    let mut near = Near::default();
    for (i, follower) in followers.iter().enumerate() {
        if run.is_stopped() {
            run.not_reached(&follower.dir, &follower.name);
            continue;
        }
        let leader = leaders.get(&follower.inode).filter(|leader| leader.arrived);
        let linked = leader.map(|leader| link(run, leader, follower, &mut near));
        match linked {
            Some(Ok(())) => run
                .counters
                .count(Outcome::Linked, || follower.dir.path_of(&follower.name)),
            Some(Err(failure)) if !can_copy_instead(&failure) => run.entry_failed(failure),
            // The inode is full of names that dedup gave it: this group gets
            // one of its own.
            Some(Err(_)) if run.twins().is_some() => {
                regroup(run, &mut leaders, &followers[..i], follower, &mut near);
            }
            // No leader, or no more links to it: a file of its own.
            other => {
                if let Some(leader) = copy_instead(run, follower) {
                    leaders.insert(follower.inode, leader);
                }
                if let Some(Err(failure)) = other {
                    recount_as_failed(run, failure);
                }
            }
        }
    }
}

/// Copies a follower by itself, and links to it what was linked before.
fn regroup(
    run: &Run<'_>,
    leaders: &mut HashMap<(u64, u64), Leader>,
    before: &[Follower],
    follower: &Follower,
    near: &mut Near,
) {
    run.alone.store(true, Relaxed);
    let copied = copy_instead(run, follower);
    run.alone.store(false, Relaxed);
    let Some(leader) = copied else { return };
    if !leader.arrived {
        return;
    }
    run.counters.recount(Outcome::Copied, Outcome::Linked);
    run.counters.copied_files.fetch_sub(1, Relaxed);
    let old = leaders.remove(&follower.inode);
    let group = before.iter().filter(|f| f.inode == follower.inode);
    let others = old.iter().map(|old| (&old.dir, &old.name));
    for (dir, name) in others.chain(group.map(|f| (&f.dir, &f.name))) {
        let relinked = near.open(run, dir, name).and_then(|fd| {
            let spot = Spot {
                run,
                dir: dir.clone(),
                fd,
                name: dir.dest_name(name),
            };
            let from = run.dest.dir(&leader.dir)?;
            let linked = spot.relink(&from, leader.dir.dest_name(&leader.name));
            linked.during_at(Op::Link, || spot.path())
        });
        if let Err(failure) = relinked {
            run.counters.recount(Outcome::Linked, Outcome::Failed);
            run.failed(failure);
        }
    }
    leaders.insert(follower.inode, leader);
}

/// The copy arrived, but not as the link that it should be.
fn recount_as_failed(run: &Run<'_>, failure: Failure) {
    run.counters.recount(Outcome::Copied, Outcome::Failed);
    run.failed(failure);
}

/// Where links cannot be made (EMLINK: the inode has all the names that the
/// filesystem allows; EPERM: a filesystem without links), the content is
/// still worth having.
fn can_copy_instead(failure: &Failure) -> bool {
    let codes = [
        Errno::EMLINK,
        Errno::EPERM,
        Errno::EOPNOTSUPP,
        Errno::EXDEV,
        Errno::ENOENT,
    ];
    failure
        .source
        .raw_os_error()
        .is_some_and(|n| codes.iter().any(|&c| c as i32 == n))
}

fn link(
    run: &Run<'_>,
    leader: &Leader,
    follower: &Follower,
    near: &mut Near,
) -> Result<(), Failure> {
    let dir = &follower.dir;
    let fd = near.open(run, dir, &follower.name)?;
    let spot = Spot {
        run,
        dir: dir.clone(),
        fd,
        name: dir.dest_name(&follower.name),
    };
    let leader_fd = run.dest.dir(&leader.dir)?;
    let leader_name = leader.dir.dest_name(&leader.name);
    let led = Stat::at(&leader_fd, leader_name).during_at(Op::Link, || spot.path())?;
    match Stat::at(spot.fd, spot.name) {
        Ok(there) if there.is_same_inode(&led) => return Ok(()),
        Ok(there) if there.kind() == Kind::Dir && !run.options.delete => {
            return Err(Failure::new(Op::Link, spot.path(), Errno::EISDIR.into()));
        }
        _ => {}
    }
    let source = Stat {
        dev: follower.inode.0,
        ino: follower.inode.1,
        ..Stat::default()
    };
    spot.replaceable(&source)?;
    let known = spot.known(&led);
    spot.link(&leader_fd, leader_name)
        .during_at(Op::Link, || spot.path())?;
    // One name more has changed its ctime, and nothing else.
    if let (Some(digest), Ok(now)) = (known, Stat::at(spot.fd, spot.name)) {
        spot.learn(&now, digest);
    }
    if run.is_verified() {
        let there = Stat::at(spot.fd, spot.name).during_at(Op::Compare, || spot.path())?;
        if !there.is_same_inode(&led) {
            return Err(Failure::because(
                Op::Compare,
                spot.path(),
                "it is not the link that was made",
            ));
        }
    }
    Ok(())
}

/// Copies a follower by itself; it leads from now on.
fn copy_instead(run: &Run<'_>, follower: &Follower) -> Option<Leader> {
    let mut listing = Listing::default();
    listing.dirs.push(follower.dir.clone());
    let path = follower.dir.path_of(&follower.name);
    let looked = follower
        .dir
        .source
        .root
        .dir(&follower.dir.relative())
        .and_then(|fd| Stat::at(fd, &follower.name))
        .during(Op::Stat, &path);
    let stat = match looked {
        Ok(stat) => stat,
        Err(failure) => {
            run.entry_failed(failure);
            return None;
        }
    };
    listing.push(0, &follower.name, stat.ino, stat.kind());
    listing.fill(0, &stat);
    if stat.kind() == Kind::File {
        read::copy_one(run, &listing, 0);
    } else {
        make_special(run, &listing, 0, &mut Near::default());
    }
    lock(&run.leaders).remove(&(stat.dev, stat.ino))
}

/// Gives every directory its metadata, and counts it.
pub(crate) fn directories(run: &Run<'_>, dirs: &[Arc<Dir>]) {
    // Parents come before children in the list.
    for dir in dirs.iter().rev() {
        if !dir.is_entry() {
            if let Err(failure) = close_again(run, dir) {
                run.failed(failure);
            }
            continue;
        }
        if dir.role == Role::Way {
            // Nothing that is listed was made in it, or could be.
            if dir.made.get().is_none() && (dir.there != There::Dir || run.is_stopped()) {
                continue;
            }
            run.counters.found.fetch_add(1, Relaxed);
        }
        if run.dest.rules.existing && dir.there == There::Nothing {
            run.counters.count(Outcome::Skipped, || dir.path_of(b""));
            continue;
        }
        if run.is_stopped() && dir.made.get().is_none() {
            run.not_reached_path(dir.dest_path_of(&run.dest.path, b""));
            continue;
        }
        // Nothing was made in it: most often it is as it should be.
        if dir.made.get().is_none() && !dir.is_incomplete && is_same(run, dir) {
            run.counters.count(Outcome::Unchanged, || dir.path_of(b""));
            continue;
        }
        match directory(run, dir) {
            Ok((outcome, failures)) => {
                run.finished(dir, b"", outcome, failures);
            }
            Err(failure) => run.entry_failed(failure),
        }
    }
}

/// Whether a directory is there and has all its metadata, with nothing to be
/// said about it.
fn is_same(run: &Run<'_>, dir: &Dir) -> bool {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let opened = run.dest.root.at(&dir.relative_dest(), flags);
    // What goes wrong here is met again, and told, on the long way.
    let Ok(file) = opened.map(File::from) else {
        return false;
    };
    let (Ok(there), Ok(have)) = (Stat::of(&file), Place::Open(&file).read()) else {
        return false;
    };
    let exact = |a: &Stat, b: &Stat| (a.uid, a.gid, a.mtime) == (b.uid, b.gid, b.mtime);
    dir.there == There::Dir
        && exact(&dir.stat, &there)
        && is_up_to_date(run.dest, &dir.stat, &dir.xattrs, &there, &have)
}

/// A directory that is no entry, and was opened up for its user to write to,
/// gets its mode back.
fn close_again(run: &Run<'_>, dir: &Dir) -> Result<(), Failure> {
    let Some(mode) = made(dir).and_then(|made| made.mode_before) else {
        return Ok(());
    };
    let path = dir.dest_path_of(&run.dest.path, b"");
    let fd = run.dest.dir(dir)?;
    Target::Name(&fd, b".")
        .set_permissions(mode)
        .during(Op::SetMetadata, &path)
}

fn directory(run: &Run<'_>, dir: &Arc<Dir>) -> Result<(Outcome, Vec<Failure>), Failure> {
    let path = dir.dest_path_of(&run.dest.path, b"");
    run.dest.dir(dir)?;
    let is_fresh = made(dir).is_some_and(|made| made.fresh);
    let fd = run
        .dest
        .root
        .at(&dir.relative_dest(), OFlag::O_RDONLY | OFlag::O_DIRECTORY)
        .during(Op::SetMetadata, &path)?;
    let file = File::from(fd);
    let handle = file.try_clone().during(Op::SetMetadata, &path)?.into();
    let spot = Spot {
        run,
        dir: dir.clone(),
        fd: &handle,
        name: b"",
    };
    let place = Place::Open(&file);
    let there = Stat::of(&file).during(Op::Compare, &path)?;
    let have = place.read().during(Op::Compare, &path)?;
    let mut failures = Vec::new();
    // What is right already keeps its ctime.
    if !is_up_to_date(run.dest, &dir.stat, &dir.xattrs, &there, &have) {
        failures = spot.dress(
            &Target::Open(&file),
            &place,
            &dir.stat,
            &dir.xattrs,
            is_fresh,
        )?;
    }
    if run.is_verified() && failures.is_empty() {
        let have = Stat::of(&file).during(Op::Compare, &path)?;
        check::compare_stat(
            &spot,
            &check::Expect::metadata(&dir.stat, &dir.xattrs),
            &have,
            &mut failures,
        );
    }
    let outcome = if dir.is_incomplete {
        Outcome::Failed
    } else if is_fresh {
        Outcome::Copied
    } else {
        Outcome::Unchanged
    };
    Ok((outcome, failures))
}

/// Flushes everything that was written, on every filesystem that was written
/// to, and tells if that failed (syncfs(2) reports write errors since 5.8).
pub(crate) fn sync(run: &Run<'_>, dirs: &[Arc<Dir>]) {
    let mut devices: HashMap<u64, &Arc<Dir>> = HashMap::new();
    let mut failures = Vec::new();
    let flush = |path: &[u8]| -> io::Result<u64> {
        let fd = run
            .dest
            .root
            .at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        nix::unistd::syncfs(&fd)?;
        Ok(Stat::of(&fd)?.dev)
    };
    for dir in dirs {
        let looked = run.dest.root.dir(&dir.relative_dest()).and_then(Stat::of);
        let Ok(stat) = looked else { continue };
        if devices.insert(stat.dev, dir).is_some() {
            continue;
        }
        if let Err(e) = flush(&dir.relative_dest()) {
            failures.push(Failure::new(
                Op::Sync,
                dir.dest_path_of(&run.dest.path, b""),
                e,
            ));
        }
    }
    for failure in failures {
        run.failed(failure);
    }
}
