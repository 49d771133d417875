//! What kind of disk is behind a file: does a seek cost time there?
//!
//! In: an `st_dev` and the mounts. Out: a [`Disk`] with a reason in words.
//! sysfs leads from the filesystem through partitions, dm, md and bcache to the
//! leaves; a disk seeks if any leaf does. `rotational=0` is believed,
//! `rotational=1` is not: virtio, USB bridges and cloud disks say it of flash,
//! so those are timed (measure.rs). Nothing is remembered here: ask once per
//! `st_dev`.

mod measure;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::stat::{major, makedev, minor};

use self::measure::{MEASURE_TIME, Timing, measure};
use super::mounts::Mount;

/// The answer for one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// `sda`, `sda+sdb`, or the filesystem's type where no disk is known.
    pub(crate) name: String,
    /// Whether reading in physical order pays.
    pub(crate) seeks: bool,
    /// How that was found out: a short phrase for people.
    pub(crate) why: String,
    /// Equal for filesystems on the same disk: the device number of the first
    /// leaf, or the filesystem's own where there is none.
    pub(crate) key: u64,
}

/// Finds the disk behind an `st_dev`. Measuring reads from it, for less than a
/// second.
pub(crate) fn disk_of(st_dev: u64, mounts: &[Mount]) -> Disk {
    let until = Instant::now() + MEASURE_TIME;
    let measure = |leaf: &Leaf| measure(leaf, until);
    let ask = |mount| classify(Path::new("/sys"), st_dev, mount, &measure);
    let shown_at = |point: &Path| fs::symlink_metadata(point).ok().map(|m| m.dev());
    let candidates = candidates(st_dev, mounts, &shown_at);
    let mut disks = candidates.into_iter().map(|mount| ask(Some(mount)));
    // One candidate, but for the guess that `candidates` explains: there the
    // order that suits a disk is the cheaper mistake.
    let Some(first) = disks.next() else {
        return ask(None);
    };
    if first.seeks {
        return first;
    }
    disks.find(|disk| disk.seeks).unwrap_or(first)
}

/// The same by what sysfs says alone, which takes no time: a disk that could be
/// flash in disguise seeks.
pub(crate) fn disk_as_told(st_dev: u64, mounts: &[Mount]) -> Disk {
    let measure = |_: &Leaf| Err(io::ErrorKind::Unsupported.into());
    let mount = mounts.iter().rev().find(|m| m.dev == st_dev);
    classify(Path::new("/sys"), st_dev, mount, &measure)
}

/// The mounts that files with this `st_dev` can belong to. Each btrfs subvolume
/// has a number of its own, unlike that of its mount: a mounted one is known by
/// what its mount point shows, one inside another belongs to some btrfs.
fn candidates<'a>(
    st_dev: u64,
    mounts: &'a [Mount],
    shown_at: &dyn Fn(&Path) -> Option<u64>,
) -> Vec<&'a Mount> {
    if let Some(mount) = mounts.iter().rev().find(|m| m.dev == st_dev) {
        return vec![mount];
    }
    if major(st_dev) != 0 {
        return Vec::new();
    }
    let mut btrfs: Vec<&Mount> = mounts.iter().filter(|m| m.fstype == "btrfs").collect();
    if let Some(mount) = btrfs.iter().find(|m| shown_at(&m.point) == Some(st_dev)) {
        return vec![mount];
    }
    btrfs.sort_by_key(|m| m.dev);
    btrfs.dedup_by_key(|m| m.dev);
    btrfs
}

/// A disk of its own: whole, and with nothing below it but hardware (or a file,
/// or a network).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaf {
    name: String,
    dev: u64,
    /// None where sysfs has no such attribute.
    rotational: Option<bool>,
    bytes: u64,
}

fn classify(
    sys: &Path,
    st_dev: u64,
    mount: Option<&Mount>,
    measure: &dyn Fn(&Leaf) -> io::Result<Timing>,
) -> Disk {
    let devices = devices_behind(sys, st_dev, mount);
    let mut leaves = Vec::new();
    for device in &devices {
        if let Err(err) = add_leaves(device, &mut leaves) {
            return unknown(st_dev, mount, &format!("sysfs cannot be read: {err}"));
        }
    }
    leaves.sort_by_key(|leaf| leaf.dev);
    leaves.dedup();
    let Some(first) = leaves.first() else {
        return no_disk(st_dev, mount);
    };
    let key = first.dev;
    let names: Vec<&str> = leaves.iter().map(|leaf| &leaf.name[..]).collect();
    let name = names.join("+");
    // The first that seeks settles it, and its reason is the reason.
    let mut why = String::new();
    for leaf in &leaves {
        let (seeks, reason) = leaf_seeks(leaf, measure);
        why = if leaves.len() == 1 {
            reason
        } else {
            format!("{}: {reason}", leaf.name)
        };
        if seeks {
            return Disk {
                name,
                seeks,
                why,
                key,
            };
        }
    }
    Disk {
        name,
        seeks: false,
        why,
        key,
    }
}

fn no_disk(st_dev: u64, mount: Option<&Mount>) -> Disk {
    if major(st_dev) != 0 {
        return unknown(st_dev, mount, "sysfs does not know the device");
    }
    let name = mount.map_or("unknown", |m| &m.fstype);
    Disk {
        name: name.to_owned(),
        seeks: false,
        why: if mount.is_some() {
            format!("{name} has no disk of its own")
        } else {
            "no disk is known behind it".to_owned()
        },
        key: st_dev,
    }
}

/// There is a block device, but nothing is known of it. Reading flash in
/// physical order costs a little, reading a disk in any other order costs a
/// multiple: so it counts as one that seeks.
fn unknown(st_dev: u64, mount: Option<&Mount>, why: &str) -> Disk {
    let numbers = format!("{}:{}", major(st_dev), minor(st_dev));
    Disk {
        name: mount.map_or(numbers, |m| m.fstype.clone()),
        seeks: true,
        why: format!("{why}, so a seek is taken to cost time"),
        key: st_dev,
    }
}

/// The sysfs directories of the block devices that a filesystem lies on: none
/// for tmpfs, network filesystems, FUSE, overlay and the like.
fn devices_behind(sys: &Path, st_dev: u64, mount: Option<&Mount>) -> Vec<PathBuf> {
    if major(st_dev) != 0 {
        return by_number(sys, st_dev).into_iter().collect();
    }
    let Some(mount) = mount else {
        return Vec::new();
    };
    // An anonymous number. btrfs, some FUSE filesystems (ntfs-3g) and bcachefs
    // still name a device as their source; bcachefs names all, with colons.
    let sources = mount.source.to_string_lossy();
    if !sources.starts_with("/dev/") {
        return Vec::new();
    }
    let nodes = sources.split(':').map(Path::new);
    let devices: Vec<PathBuf> = nodes.filter_map(|node| by_node(sys, node)).collect();
    if mount.fstype == "btrfs" {
        return btrfs_siblings(sys, &devices).unwrap_or(devices);
    }
    devices
}

fn by_number(sys: &Path, dev: u64) -> Option<PathBuf> {
    let link = format!("dev/block/{}:{}", major(dev), minor(dev));
    sys.join(link).canonicalize().ok()
}

/// By the device node's number, or by its name alone where the node is missing,
/// as it is in containers.
fn by_node(sys: &Path, node: &Path) -> Option<PathBuf> {
    let number = fs::metadata(node)
        .ok()
        .map(|m| m.rdev())
        .filter(|&dev| dev != 0);
    if let Some(device) = number.and_then(|dev| by_number(sys, dev)) {
        return Some(device);
    }
    let name = sys.join("class/block").join(node.file_name()?);
    name.canonicalize().ok()
}

/// All devices of the btrfs filesystem that one of its devices belongs to, as
/// `/sys/fs/btrfs/UUID/devices/` links them; none where that is not to be seen.
fn btrfs_siblings(sys: &Path, known: &[PathBuf]) -> Option<Vec<PathBuf>> {
    for filesystem in fs::read_dir(sys.join("fs/btrfs")).ok()?.flatten() {
        // `features` lies beside the UUIDs and has no devices.
        let Ok(links) = linked(&filesystem.path().join("devices")) else {
            continue;
        };
        if links.iter().any(|device| known.contains(device)) {
            return Some(links);
        }
    }
    None
}

/// The targets of the links in a sysfs directory; empty where there is no such
/// directory, which is how sysfs says "none".
fn linked(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(links) => links.map(|link| link?.path().canonicalize()).collect(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

/// Follows a block device down: a partition to its disk, dm, md and bcache
/// through `slaves/`.
fn add_leaves(device: &Path, leaves: &mut Vec<Leaf>) -> io::Result<()> {
    if device.join("partition").exists()
        && let Some(disk) = device.parent()
    {
        return add_leaves(disk, leaves);
    }
    let below = linked(&device.join("slaves"))?;
    for slave in &below {
        add_leaves(slave, leaves)?;
    }
    if below.is_empty() {
        leaves.push(leaf(device)?);
    }
    Ok(())
}

fn leaf(device: &Path) -> io::Result<Leaf> {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let dev = attribute(&device.join("dev"))?.unwrap_or_default();
    let dev = dev
        .split_once(':')
        .and_then(|(major, minor)| Some(makedev(major.parse().ok()?, minor.parse().ok()?)));
    let sectors = attribute(&device.join("size"))?.and_then(|s| s.parse().ok());
    Ok(Leaf {
        name: name.into_owned(),
        dev: dev.unwrap_or(0),
        rotational: attribute(&device.join("queue/rotational"))?.map(|flag| flag != "0"),
        // sysfs counts in 512 bytes whatever the disk's blocks are.
        bytes: sectors.unwrap_or(0u64).saturating_mul(512),
    })
}

/// An attribute's text; none where the kernel does not offer it.
fn attribute(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

fn leaf_seeks(leaf: &Leaf, measure: &dyn Fn(&Leaf) -> io::Result<Timing>) -> (bool, String) {
    let says = match leaf.rotational {
        Some(false) => return (false, "sysfs says not rotational".to_owned()),
        Some(true) => "sysfs says rotational",
        None => "sysfs does not say",
    };
    // What the kernel says of these it knows: a loop device takes the flag of
    // the disk that holds its file (loop_update_rotational in
    // drivers/block/loop.c), and whoever simulates a disk sets it. Timing it
    // would time the page cache.
    if leaf.rotational == Some(true) && leaf.name.starts_with("loop") {
        return (true, says.to_owned());
    }
    match measure(leaf) {
        Ok(timing) => (timing.is_slow(), timing.to_string()),
        Err(err) => (
            true,
            format!("{says}, and it could not be measured ({err})"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs in a temporary directory.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Sys {
            Sys(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let file = self.0.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            let link = self.0.path().join(path);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(self.0.path().join(to), link).unwrap();
        }

        /// A whole device `devices/NAME`, or a partition `devices/DISK/NAME`.
        fn device(&self, path: &str, number: &str, rotational: &str) {
            let name = path.rsplit('/').next().unwrap();
            self.write(&format!("devices/{path}/dev"), &format!("{number}\n"));
            self.write(&format!("devices/{path}/size"), "2048\n");
            if path.contains('/') {
                self.write(&format!("devices/{path}/partition"), "1\n");
            } else if !rotational.is_empty() {
                self.write(&format!("devices/{path}/queue/rotational"), rotational);
            }
            self.link(&format!("dev/block/{number}"), &format!("devices/{path}"));
            self.link(&format!("class/block/{name}"), &format!("devices/{path}"));
        }

        fn slave(&self, upper: &str, lower: &str) {
            let name = lower.rsplit('/').next().unwrap();
            self.link(
                &format!("devices/{upper}/slaves/{name}"),
                &format!("devices/{lower}"),
            );
        }

        fn ask(&self, dev: u64, mount: Option<&Mount>, ms: Option<f64>) -> Disk {
            classify(self.0.path(), dev, mount, &|_| match ms {
                Some(median_ms) => Ok(Timing {
                    reads: 13,
                    median_ms,
                }),
                None => Err(io::ErrorKind::PermissionDenied.into()),
            })
        }
    }

    #[test]
    fn a_partition_is_its_disk_and_rotational_0_is_believed() {
        let sys = Sys::new();
        sys.device("nvme0n1", "259:0", "0\n");
        sys.device("nvme0n1/nvme0n1p2", "259:2", "");
        let disk = sys.ask(makedev(259, 2), None, Some(9.0));
        let expected = Disk {
            name: "nvme0n1".into(),
            seeks: false,
            why: "sysfs says not rotational".into(),
            key: makedev(259, 0),
        };
        assert_eq!(disk, expected);
    }

    #[test]
    fn rotational_1_is_measured_and_believed_only_where_that_fails() {
        let sys = Sys::new();
        sys.device("vda", "254:0", "1\n");
        let ask = |ms| sys.ask(makedev(254, 0), None, ms);
        let fast = ask(Some(0.09));
        assert!(!fast.seeks);
        assert_eq!(fast.why, "measured: 13 random reads, median 0.09 ms");
        assert!(ask(Some(8.3)).seeks);
        let unreadable = ask(None);
        assert!(unreadable.seeks);
        assert!(
            unreadable
                .why
                .starts_with("sysfs says rotational, and it could not be measured")
        );
    }

    #[test]
    fn a_loop_device_has_its_own_flag_and_is_not_measured() {
        let sys = Sys::new();
        sys.device("loop3", "7:3", "1\n");
        sys.device("loop4", "7:4", "0\n");
        let disk = sys.ask(makedev(7, 3), None, Some(0.01));
        assert_eq!((disk.seeks, &disk.why[..]), (true, "sysfs says rotational"));
        assert!(!sys.ask(makedev(7, 4), None, Some(9.0)).seeks);
    }

    #[test]
    fn a_stack_seeks_if_any_of_its_leaves_does() {
        let sys = Sys::new();
        sys.device("sda", "8:0", "0\n");
        sys.device("sda/sda1", "8:1", "");
        sys.device("sdb", "8:16", "1\n");
        sys.device("md0", "9:0", "1\n");
        sys.device("dm-0", "253:0", "1\n");
        sys.slave("md0", "sda/sda1");
        sys.slave("md0", "sdb");
        sys.slave("dm-0", "md0");
        let disk = sys.ask(makedev(253, 0), None, Some(8.0));
        assert_eq!(
            (&disk.name[..], disk.seeks, disk.key),
            ("sda+sdb", true, makedev(8, 0))
        );
        assert_eq!(disk.why, "sdb: measured: 13 random reads, median 8.00 ms");
        assert!(!sys.ask(makedev(253, 0), None, Some(0.1)).seeks);
        assert_eq!(
            sys.ask(makedev(8, 1), None, None).key,
            disk.key,
            "one disk, one sweep"
        );
    }

    #[test]
    fn btrfs_is_all_devices_of_its_filesystem() {
        let sys = Sys::new();
        sys.device("zza", "240:0", "0\n");
        sys.device("zzb", "240:16", "1\n");
        sys.device("zzb/zzb1", "240:17", "");
        sys.write("fs/btrfs/features/raid1c34", "0\n");
        sys.link("fs/btrfs/0b1c/devices/zza", "devices/zza");
        sys.link("fs/btrfs/0b1c/devices/zzb1", "devices/zzb/zzb1");
        let mount = Mount::fake(makedev(0, 40), "/home", "/home", "btrfs", "/dev/zza");
        // A subvolume's st_dev, which no mount has.
        let disk = sys.ask(makedev(0, 77), Some(&mount), Some(7.5));
        assert_eq!(
            (&disk.name[..], disk.seeks, disk.key),
            ("zza+zzb", true, makedev(240, 0))
        );
    }

    #[test]
    fn a_subvolume_is_found_by_its_mount_point_or_lies_in_some_btrfs() {
        let mounts = [
            Mount::fake(makedev(0, 40), "/", "/", "btrfs", "/dev/zza"),
            Mount::fake(makedev(0, 40), "/home", "/home", "btrfs", "/dev/zza"),
            Mount::fake(makedev(0, 50), "/", "/mnt", "btrfs", "/dev/zzb"),
            Mount::fake(makedev(0, 60), "/", "/run", "tmpfs", "tmpfs"),
        ];
        let shown_at = |point: &Path| match point.to_str() {
            Some("/home") => Some(makedev(0, 41)),
            _ => None,
        };
        let points = |minor| {
            let found = candidates(makedev(0, minor), &mounts, &shown_at);
            found.iter().map(|m| m.point.clone()).collect::<Vec<_>>()
        };
        assert_eq!(points(60), [Path::new("/run")]);
        assert_eq!(points(41), [Path::new("/home")]);
        assert_eq!(points(42), [Path::new("/"), Path::new("/mnt")]);
        assert!(candidates(makedev(8, 1), &mounts, &shown_at).is_empty());
    }

    #[test]
    fn without_a_block_device_nothing_seeks() {
        let sys = Sys::new();
        let dev = makedev(0, 23);
        for (fstype, source) in [("tmpfs", "tmpfs"), ("nfs4", "host:/dev/pool"), ("proc", "")] {
            let mount = Mount::fake(dev, "/", "/x", fstype, source);
            let disk = sys.ask(dev, Some(&mount), None);
            let expected = Disk {
                name: fstype.into(),
                seeks: false,
                why: format!("{fstype} has no disk of its own"),
                key: dev,
            };
            assert_eq!(disk, expected);
        }
        assert!(!sys.ask(dev, None, None).seeks);
    }

    #[test]
    fn a_block_device_that_sysfs_does_not_know_counts_as_seeking() {
        let sys = Sys::new();
        let disk = sys.ask(makedev(8, 1), None, Some(0.1));
        assert_eq!((&disk.name[..], disk.seeks), ("8:1", true));
        sys.device("sdz", "8:144", "");
        assert!(
            !sys.ask(makedev(8, 144), None, Some(0.1)).seeks,
            "no flag: measured"
        );
    }

    #[test]
    fn this_machine_is_told_something() {
        let mounts = super::super::mounts::mounts().unwrap();
        let dev = fs::metadata("/").unwrap().dev();
        let disk = disk_of(dev, &mounts);
        assert!(!disk.name.is_empty() && !disk.why.is_empty());
    }
}
