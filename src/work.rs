//! Executes a plan: one reader a disk fills bundles and chunks in the order of
//! its sweep, a bounded channel hands them to a pool of writers.
//!
//! [`stream`] is the other way, for disks that do not seek: nothing is planned,
//! every thread lists, reads and writes by itself. Both end in the same
//! writing, verifying and counting.

pub(crate) mod ahead;
pub(crate) mod behind;
pub(crate) mod budget;
pub(crate) mod checkpoint;
pub(crate) mod delta;
pub(crate) mod dress;
pub(crate) mod keep;
pub(crate) mod known;
pub(crate) mod large;
pub(crate) mod part;
pub(crate) mod read;
pub(crate) mod refer;
pub(crate) mod run;
pub(crate) mod spot;
pub(crate) mod stream;
pub(crate) mod turns;
pub(crate) mod write;

use std::sync::atomic::Ordering::Relaxed;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::plan::{Action, Kind, Listing, Plan, Read, Sweep};
use budget::Budget;
use run::Run;

/// What a writer is handed.
pub(crate) enum Work {
    /// Small files with their content.
    Bundle(crate::plan::bundle::Bundle),
    /// A piece of a large file.
    Chunk(large::Chunk),
    /// Entries without content to read: links, nodes, what is there already.
    Entries(Vec<u32>),
}

/// Entries in one `Work::Entries`.
const ENTRIES: usize = 256;

/// Carries out the plan; outcomes and failures go to `run`.
pub(crate) fn execute(run: &Run<'_>, plan: &Plan, budget: &Budget, writers: usize) {
    // Two for each writer: one under way, one that waits. More would only hold
    // buffers that the readers could fill.
    let (work_tx, work_rx) = bounded(2 * writers);
    std::thread::scope(|scope| {
        for _ in 0..writers {
            let work_rx: Receiver<Work> = work_rx.clone();
            scope.spawn(move || {
                for work in work_rx {
                    write::work(run, &plan.listing, budget, work);
                }
            });
        }
        for sweep in &plan.sweeps {
            for reads in shares(sweep) {
                let work_tx = work_tx.clone();
                scope.spawn(move || {
                    read::sweep(run, plan, (sweep, reads), budget, &mut |work| {
                        send(&work_tx, work);
                    });
                });
            }
        }
        send_entries(run, &plan.listing, &work_tx);
        drop(work_tx);
    });
}

/// Readers that a plan keeps busy: one a disk that seeks, some for others.
pub(crate) fn readers(plan: &Plan) -> usize {
    plan.sweeps.iter().map(|sweep| shares(sweep).count()).sum()
}

/// One sweep is one reader's: a second would move the head away. Where order
/// means nothing, several read side by side.
fn shares(sweep: &Sweep) -> std::slice::Chunks<'_, Read> {
    let readers = if sweep.choice.order == "none" {
        READERS
    } else {
        1
    };
    sweep
        .reads
        .chunks(sweep.reads.len().div_ceil(readers).max(1))
}

/// Readers of a disk that does not seek.
const READERS: usize = 4;

/// What needs no reading order: in the order of the listing's directories.
fn send_entries(run: &Run<'_>, listing: &Listing, work_tx: &Sender<Work>) {
    let needs = |i: &u32| {
        let entry = &listing.entries[*i as usize];
        match entry.action {
            Action::Keep | Action::Same | Action::Skip | Action::Refer => true,
            Action::Copy => entry.kind != Kind::File || run.is_shared(listing, entry),
            Action::Link | Action::Fail => false,
        }
    };
    let count = u32::try_from(listing.entries.len()).unwrap_or(u32::MAX);
    let mut all: Vec<u32> = (0..count).filter(needs).collect();
    all.sort_unstable_by_key(|&i| listing.entries[i as usize].listed());
    for some in all.chunks(ENTRIES) {
        if run.is_stopped() {
            break;
        }
        send(work_tx, Work::Entries(some.to_vec()));
    }
}

/// The receivers live as long as the senders, in the same scope.
fn send(work_tx: &Sender<Work>, work: Work) {
    work_tx.send(work).expect("writers outlive readers");
}

/// Entries that nobody got to, because the job was stopped, are failures too:
/// each is named where the destination was full.
pub(crate) fn account_for_the_rest(run: &Run<'_>, listing: &Listing) {
    for (i, entry) in (0..).zip(&listing.entries) {
        if entry.action != Action::Fail && entry.action != Action::Link && !run.is_marked(i) {
            run.not_reached(listing.dir(entry), listing.name(entry));
        }
    }
    run.counters.scan_done.store(true, Relaxed);
}
