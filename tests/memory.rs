//! What a plan takes of memory. A test binary of its own, with one test: its allocator counts what
//! the whole process holds.

#![allow(unsafe_code)] // An allocator is unsafe by its trait; this one only counts.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use common::Scratch;
use common::probe::succeeds;

/// The system's allocator, which counts bytes held now and at most.
struct Counting {
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    fn add(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(held, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.held.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    // What is large moves by its pages, and never is there twice.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size.saturating_sub(layout.size()));
        self.held
            .fetch_sub(layout.size().saturating_sub(size), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static MEMORY: Counting = Counting {
    held: AtomicUsize::new(0),
    peak: AtomicUsize::new(0),
};

/// Bytes that planning this takes at most, and how many entries it finds.
fn planned(src: PathBuf) -> (usize, usize) {
    let options = haul::Options {
        order: haul::Order::Physical,
        memory: Some(64 << 20),
        ..haul::Options::default()
    };
    let counters = haul::Counters::default();
    let before = MEMORY.held.load(Relaxed);
    MEMORY.peak.store(before, Relaxed);
    let plan = haul::plan(&[src], None, &options, &counters, &AtomicBool::new(false)).unwrap();
    let reads: usize = plan.sweeps.iter().map(|sweep| sweep.reads.len()).sum();
    assert_eq!(reads, plan.listing.entries.len());
    (MEMORY.peak.load(Relaxed) - before, reads)
}

#[test]
fn a_plan_takes_at_most_120_bytes_a_file_with_its_share_of_a_directory() {
    const DIRS: usize = 800;
    const FILES: usize = 25;
    let scratch = Scratch::new();
    let src = scratch.src();
    let grow = |first: usize| {
        for dir in first..first + DIRS {
            src.dir(format!("{}/{dir:05}", dir % 16));
            for file in 0..FILES {
                let path = src.path(format!("{}/{dir:05}/{file:08}", dir % 16));
                std::fs::write(path, "x").unwrap();
            }
        }
        // Asked where a file lies that is not written yet, the kernel writes it: one by one.
        succeeds("sync", &["-f", src.root().to_str().unwrap()]).unwrap();
        planned(src.root().to_path_buf())
    };
    let (some, all) = (grow(0), grow(DIRS));
    assert_eq!((some.1, all.1), (DIRS * FILES, 2 * DIRS * FILES));
    let each = (all.0 - some.0) / (all.1 - some.1);
    assert!(each <= 120, "{each} bytes a file");
    // Less than what is kept of each would mean that nothing was counted.
    assert!(
        each >= size_of::<haul::plan::Entry>(),
        "{each} bytes a file"
    );
}
