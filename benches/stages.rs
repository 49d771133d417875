//! Each stage alone, and whole copies beside the two shortest programs that copy a tree:
//!
//!     cargo bench --bench stages
//!
//! HAUL_BENCH_FILES says how many files the tree has (default 20,000, mean 8 KiB, 25 to a directory).
//! It lies in /dev/shm where there is one. Nothing here is a test.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use haul::stages::{self, Scattered};
use haul::{Counters, Job, Options, Verify};
use rayon::iter::{ParallelBridge, ParallelIterator};

fn main() {
    divan::main();
    if let Some(tree) = TREE.get() {
        fs::remove_dir_all(&tree.dir).expect("the bench's directory can be removed");
    }
}

struct Tree {
    dir: PathBuf,
    files: usize,
    bytes: usize,
}

static TREE: OnceLock<Tree> = OnceLock::new();

/// The source, made once.
fn tree() -> &'static Tree {
    TREE.get_or_init(|| {
        let files =
            std::env::var("HAUL_BENCH_FILES").map_or(20_000, |n| n.parse().expect("a number"));
        let place = Path::new("/dev/shm");
        let place = if place.is_dir() {
            place.to_owned()
        } else {
            std::env::temp_dir()
        };
        let dir = place.join(format!("haul-stages-{}", std::process::id()));
        let mut bytes = 0;
        for file in 0..files {
            let sub = dir.join(format!("src/d{}", file / 25));
            fs::create_dir_all(&sub).expect("mkdir");
            let content = vec![b'x'; file * 7919 % 16_384];
            bytes += content.len();
            fs::write(sub.join(format!("f{file}")), content).expect("write");
        }
        Tree { dir, files, bytes }
    })
}

/// Copies the tree into a new directory each time, which is removed outside of the clock.
fn copies(bencher: Bencher, copy: impl Fn(&Path, &Path) + Sync) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    struct Copy(PathBuf);
    impl Drop for Copy {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("the copy can be removed");
        }
    }
    let tree = tree();
    bencher
        .counter(ItemsCount::new(tree.files))
        .counter(BytesCount::new(tree.bytes))
        .with_inputs(|| {
            tree.dir
                .join(format!("copy{}", COUNT.fetch_add(1, Relaxed)))
        })
        .bench_local_values(|to| {
            copy(&tree.dir.join("src"), &to);
            Copy(to)
        });
}

// The baselines: no metadata, no attributes, no verification, the first error ends all.

#[divan::bench(sample_count = 7, sample_size = 1)]
fn copy_serial(bencher: Bencher) {
    fn copy(from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                copy(&entry.path(), &to)?;
            } else {
                fs::copy(entry.path(), to)?;
            }
        }
        Ok(())
    }
    copies(bencher, |from, to| copy(from, to).expect("copy"));
}

#[divan::bench(sample_count = 7, sample_size = 1)]
fn copy_rayon(bencher: Bencher) {
    fn copy(from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        fs::read_dir(from)?.par_bridge().try_for_each(|entry| {
            let entry = entry?;
            let to = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                copy(&entry.path(), &to)
            } else {
                fs::copy(entry.path(), to).map(drop)
            }
        })
    }
    copies(bencher, |from, to| copy(from, to).expect("copy"));
}

#[divan::bench(sample_count = 7, sample_size = 1, args = ["none", "read"])]
fn copy_haul(bencher: Bencher, verify: &str) {
    let verify = if verify == "none" {
        Verify::None
    } else {
        Verify::Read
    };
    copies(bencher, |from, to| {
        let mut source = from.as_os_str().to_owned();
        source.push("/");
        let options = Options {
            verify,
            ..Options::default()
        };
        let job = Job {
            sources: vec![source.into()],
            dest: to.to_owned(),
            options,
        };
        let report = haul::run(&job, &Counters::default(), &AtomicBool::new(false)).expect("run");
        assert_eq!(report.exit_code(), 0);
    });
}

#[divan::bench(sample_count = 15, sample_size = 1)]
fn scan(bencher: Bencher) {
    let tree = tree();
    let src = tree.dir.join("src");
    bencher
        .counter(ItemsCount::new(tree.files))
        .bench_local(|| stages::scan(black_box(src.clone())).expect("scan"));
}

#[divan::bench(sample_count = 15, sample_size = 1)]
fn order(bencher: Bencher) {
    let files = Scattered::new(100_000);
    bencher
        .counter(ItemsCount::new(100_000_usize))
        .bench_local(|| black_box(&files).order());
}

#[divan::bench(sample_count = 15, sample_size = 1)]
fn bundle(bencher: Bencher) {
    let contents: Vec<Vec<u8>> = (0..10_000)
        .map(|file| vec![0; file * 7919 % 16_384])
        .collect();
    bencher
        .counter(ItemsCount::new(contents.len()))
        .bench_local(|| stages::bundle(black_box(&contents)));
}

#[divan::bench(args = [4 << 10, 64 << 10, 4 << 20])]
fn hash(bencher: Bencher, len: usize) {
    let bytes = vec![1_u8; len];
    bencher
        .counter(BytesCount::new(len))
        .bench_local(|| xxhash_rust::xxh3::xxh3_128(black_box(&bytes)));
}
