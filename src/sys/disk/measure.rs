//! Times random reads of a disk, to learn whether it has a head that moves.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use super::Leaf;

/// A random read of a disk with a head takes 4 ms at the very best (half a turn
/// at 7,200 rpm), one of flash 0.05 to 0.3 ms, one of a network disk about 0.5.
const SEEK_MS: f64 = 1.0;

/// Reads to measure at most; more than half on one side decide.
const READS: usize = 24;

/// Time to measure in, for all leaves together: a user waits for it.
pub(super) const MEASURE_TIME: Duration = Duration::from_millis(700);

/// One read: the largest logical block in common use, so that O_DIRECT takes it.
const READ_BYTES: usize = 4096;

/// What random reads took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timing {
    pub(super) reads: usize,
    pub(super) median_ms: f64,
}

impl Timing {
    /// Whether a head moved.
    pub(super) fn is_slow(self) -> bool {
        self.median_ms >= SEEK_MS
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timing { reads, median_ms } = self;
        write!(
            f,
            "measured: {reads} random reads, median {median_ms:.2} ms"
        )
    }
}

/// Times reads at random places, past the page cache. The places differ from
/// run to run, or a second run would measure the drive's cache. A thin disk in
/// a virtual machine answers for blocks it never stored without moving a head,
/// so a mostly empty one may look faster than it is.
pub(super) fn measure(leaf: &Leaf, until: Instant) -> io::Result<Timing> {
    let disk = open_direct(leaf)?;
    let blocks = leaf.bytes / READ_BYTES as u64;
    if blocks == 0 {
        return Err(io::Error::other("its size is unknown"));
    }
    // O_DIRECT wants an aligned address (open(2)): a page is enough for any
    // disk, and is found inside a buffer of two.
    let mut buffer = vec![0u8; 2 * READ_BYTES];
    let from = buffer.as_ptr().align_offset(READ_BYTES);
    let page = &mut buffer[from..from + READ_BYTES];

    // The first read may wake the disk, and does not count.
    let mut read = || {
        let start = Instant::now();
        let place = RandomState::new().build_hasher().finish() % blocks;
        disk.read_exact_at(page, place * READ_BYTES as u64)?;
        io::Result::Ok(start.elapsed().as_secs_f64() * 1000.0)
    };
    read()?;
    let mut times_ms = Vec::with_capacity(READS);
    while !is_decided(&times_ms) && (times_ms.is_empty() || Instant::now() < until) {
        times_ms.push(read()?);
    }
    Ok(timing(times_ms))
}

/// Opens a leaf's node, if it is that disk's: in a container `/dev` may show
/// another under the name. O_NONBLOCK: an empty card reader is not waited for.
fn open_direct(leaf: &Leaf) -> io::Result<File> {
    // A slash in a device's name is written `!` in sysfs.
    let node = Path::new("/dev").join(leaf.name.replace('!', "/"));
    let flags = OFlag::O_DIRECT | OFlag::O_NONBLOCK;
    let disk = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(&node)?;
    if disk.metadata()?.rdev() != leaf.dev {
        let node = node.display();
        return Err(io::Error::other(format!("{node} is another device")));
    }
    Ok(disk)
}

/// Whether the reads still allowed could not move the median across the line.
fn is_decided(times_ms: &[f64]) -> bool {
    let slow = times_ms.iter().filter(|&&ms| ms >= SEEK_MS).count();
    slow.max(times_ms.len() - slow) > READS / 2 || times_ms.len() >= READS
}

fn timing(mut times_ms: Vec<f64>) -> Timing {
    times_ms.sort_by(f64::total_cmp);
    Timing {
        reads: times_ms.len(),
        median_ms: times_ms[times_ms.len() / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measuring_stops_when_the_median_is_certain() {
        assert!(!is_decided(&[0.1; 12]));
        assert!(is_decided(&[0.1; 13]));
        assert!(is_decided(&[9.0; 13]));
        let mixed: Vec<f64> = [0.1, 9.0].into_iter().cycle().take(24).collect();
        assert!(!is_decided(&mixed[..23]));
        assert!(is_decided(&mixed));
        assert_eq!(
            timing(vec![9.0, 0.5, 2.0]),
            Timing {
                reads: 3,
                median_ms: 2.0
            }
        );
    }
}
