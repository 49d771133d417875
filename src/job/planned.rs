//! From a scan to a plan, and what a plan knows before anything is read.

use std::collections::HashMap;

use super::{Follower, Leader, Order, Plan, Run, Scan, Start, lock};
use crate::plan::choose::Choice;
use crate::plan::order::HalfRead;
use crate::plan::{Action, Entry, Listing, Sweep, order};
use crate::report::Outcome;
use crate::sys::memory;

/// Scans, and orders the reads of each disk.
pub(super) fn plan(scan: &Scan<'_>, starts: &[Start], memory: u64) -> Plan {
    let scanned = scan.run(starts);
    let mut plan = Plan {
        listing: scanned.listing,
        extents: scanned.extents,
        links: scanned.links,
        sweeps: Vec::new(),
        failures: scanned.failures,
        ..Plan::default()
    };
    let mut disks: HashMap<u64, (Choice, Vec<u32>)> = HashMap::new();
    let choices: Vec<Choice> = plan
        .listing
        .devices
        .iter()
        .map(|&dev| scan.choices.of(dev))
        .collect();
    let mut counts: HashMap<u64, usize> = HashMap::new();
    let choice_of = |entry: &Entry| &choices[usize::from(entry.device)];
    let to_read = || {
        let entries = (0..).zip(&plan.listing.entries);
        entries.filter(|(_, entry)| entry.is_to_read())
    };
    for (_, entry) in to_read() {
        *counts.entry(choice_of(entry).key).or_default() += 1;
    }
    for (i, entry) in to_read() {
        let choice = choice_of(entry);
        let room = || (choice.clone(), Vec::with_capacity(counts[&choice.key]));
        disks.entry(choice.key).or_insert_with(room).1.push(i);
    }
    let mut disks: Vec<_> = disks.into_values().collect();
    disks.sort_by_key(|(choice, _)| choice.key);
    for (choice, files) in disks {
        plan.sweeps
            .push(sweep(&plan, choice, &files, half_read(memory)));
    }
    plan
}

/// Half of the memory that is for content may wait half-read, the other half
/// is for buffers. Each large file takes two descriptors at the destination.
fn half_read(memory: u64) -> HalfRead {
    let files = memory::open_files_limit() / 8;
    HalfRead {
        bytes: memory / 2,
        files: usize::try_from(files.clamp(1, 1024)).unwrap_or(1),
    }
}

fn sweep(plan: &Plan, choice: Choice, files: &[u32], limit: HalfRead) -> Sweep {
    let Listing { entries, .. } = &plan.listing;
    let listed = order::as_listed(files, entries);
    let travel_listed = order::travel(&listed, entries, &plan.extents);
    // One order goes before the next is made: of millions of reads each counts.
    let reads = match choice.order {
        Order::Physical => {
            drop(listed);
            order::by_physical(files, entries, &plan.extents, limit)
        }
        Order::Inode => {
            drop(listed);
            order::by_inode(files, entries)
        }
        Order::Auto | Order::None => listed,
    };
    let travel = order::travel(&reads, entries, &plan.extents);
    Sweep {
        key: choice.key,
        choice: choice.told,
        reads,
        travel_listed,
        travel,
    }
}

/// What the scan could not look at is failed already.
pub(super) fn account_for_failures(run: &Run<'_>, plan: &mut Plan) {
    for failure in std::mem::take(&mut plan.failures) {
        run.failed(failure);
    }
    for entry in &plan.listing.entries {
        if entry.action == Action::Fail {
            run.counters
                .count(Outcome::Failed, || plan.listing.path(entry));
        }
    }
}

/// Files whose extents can be shared are not read.
pub(super) fn drop_shared_reads(run: &Run<'_>, plan: &mut Plan) {
    let listing = &plan.listing;
    for sweep in &mut plan.sweeps {
        sweep
            .reads
            .retain(|read| !run.is_shared(listing, &listing.entries[read.entry as usize]));
    }
}

/// Who leads a group of hard links, and who follows.
pub(super) fn register_links(run: &Run<'_>, plan: &Plan) {
    let listing = &plan.listing;
    let mut leaders = lock(&run.leaders);
    let mut followers = lock(&run.followers);
    for &(follower, leader) in &plan.links {
        let (entry, first) = (
            &listing.entries[follower as usize],
            &listing.entries[leader as usize],
        );
        let inode = (listing.devices[usize::from(first.device)], first.ino);
        leaders.entry(inode).or_insert_with(|| Leader {
            dir: listing.dir(first).clone(),
            name: listing.name(first).into(),
            arrived: false,
        });
        let (dir, name) = (listing.dir(entry).clone(), listing.name(entry).into());
        followers.push(Follower { inode, dir, name });
    }
}
