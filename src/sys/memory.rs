//! How much memory and how many open files a job may use.
//!
//! Memory: what sysinfo calls available (MemAvailable of proc_meminfo(5)), less
//! where a control group allows less. sysinfo can read control groups too, but
//! its `System::cgroup_limits` looks at the conventional root only, and its
//! figure for a process counts the page cache as used. After a few seconds of
//! copying the page cache fills any limit, and nothing would seem to be left.
//! So the groups are read here: limit, minus usage, plus the cache that the
//! kernel gives up when asked, for the process's group and all its parents.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use super::mounts::{self, Mount};

/// More open files than this are of no use to a copy, while some programs that
/// it may start (old `ssh`, anything with select(2)) walk or misjudge the
/// whole range.
const OPEN_FILES_WANTED: u64 = 65_536;

/// Bytes that can be had without swapping and without exceeding the limit of a
/// control group; 0 where the system does not say (no `/proc`).
pub(crate) fn available_bytes() -> u64 {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory).map_or(0, |s| s.available_memory());
    // Unreadable files under /proc mean that there is no limit to respect that
    // could be found out: the system's own figure stands.
    let (Ok(groups), Ok(mounts)) = (fs::read("/proc/self/cgroup"), mounts::mounts()) else {
        return system;
    };
    let left = group_dirs(&groups, &mounts).filter_map(|dir| left_in(&dir));
    left.fold(system, u64::min)
}

/// The directories of this process's groups that can limit memory, each
/// followed by its parents up to the mount point.
fn group_dirs<'a>(groups: &'a [u8], mounts: &'a [Mount]) -> impl Iterator<Item = PathBuf> + 'a {
    let own = groups
        .split(|&b| b == b'\n')
        .filter_map(|line| own_group(line, mounts));
    own.flat_map(|(dir, point)| {
        let above = dir.ancestors().map(Path::to_path_buf);
        let within = above.take_while(|dir| dir.starts_with(&point));
        within.collect::<Vec<_>>()
    })
}

/// A line of `/proc/self/cgroup` (cgroups(7)) as the group's directory and the
/// mount point that it lies under: `0::/path` for version 2,
/// `8:memory:/path` for version 1.
fn own_group(line: &[u8], mounts: &[Mount]) -> Option<(PathBuf, PathBuf)> {
    let mut fields = line.splitn(3, |&b| b == b':');
    let hierarchy = fields.next()?;
    let controllers = fields.next()?;
    let group = Path::new(OsStr::from_bytes(fields.next()?));
    let mount = if hierarchy == b"0" {
        mounts.iter().find(|m| m.fstype == "cgroup2")?
    } else if controllers.split(|&b| b == b',').any(|c| c == b"memory") {
        let has_limit = |m: &&Mount| m.point.join("memory.limit_in_bytes").exists();
        let v1 = mounts.iter().filter(|m| m.fstype == "cgroup");
        v1.into_iter().find(has_limit)?
    } else {
        return None;
    };
    // In a container the mount may show only a part of the hierarchy, and with
    // a namespace of its own the path is relative to another root: then the
    // mount's root is the nearest group that can be seen.
    let inside = group.strip_prefix(&mount.fs_root).unwrap_or(Path::new(""));
    let dir = mount.point.join(inside);
    let seen = if dir.is_dir() {
        dir
    } else {
        mount.point.clone()
    };
    Some((seen, mount.point.clone()))
}

/// Bytes that a group can still take; none where it has no limit. The root
/// group has no `memory.max`, and a group without the memory controller has no
/// such files at all: both mean "no limit here".
fn left_in(group: &Path) -> Option<u64> {
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit = limits
        .iter()
        .filter_map(|file| number(&group.join(file)))
        .min()?;
    let usages = ["memory.current", "memory.usage_in_bytes"];
    let used = usages.iter().find_map(|file| number(&group.join(file)))?;
    let cached = fs::read_to_string(group.join("memory.stat")).map_or(0, |s| file_cache(&s));
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The number in a file; none for `max` and where there is no such file.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Bytes of cached files in a `memory.stat`, children included: version 1 has
/// those sums under `total_` names, version 2 sums always.
fn file_cache(stat: &str) -> u64 {
    let value = |key: &str| -> Option<u64> {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(k, _)| *k == key)?.1.trim().parse().ok()
    };
    let sum = |keys: [&str; 2]| Some(value(keys[0])? + value(keys[1])?);
    sum(["total_inactive_file", "total_active_file"])
        .or_else(|| sum(["inactive_file", "active_file"]))
        .unwrap_or(0)
}

/// Dirty bytes at which the kernel begins to write by itself, where `available`
/// bytes are free (dirty_background_bytes and dirty_background_ratio,
/// Documentation/admin-guide/sysctl/vm.rst).
pub(crate) fn background_dirty_bytes(available: u64) -> u64 {
    let asked = |name: &str| number(&Path::new("/proc/sys/vm").join(name));
    let bytes = asked("dirty_background_bytes").filter(|&bytes| bytes > 0);
    bytes.unwrap_or_else(|| available / 100 * asked("dirty_background_ratio").unwrap_or(10))
}

/// How many descriptors this process may have (the soft limit).
pub(crate) fn open_files_limit() -> u64 {
    // getrlimit(2) fails for a bad address or an unknown resource only. If it
    // should, this is the least that POSIX-minded systems gave.
    getrlimit(Resource::RLIMIT_NOFILE).map_or(256, |(soft, _)| soft)
}

/// Raises the soft limit of open files to the hard one (at most 65,536) and
/// returns the limit in force. Where the kernel refuses, the lower one stays
/// and is respected: nothing depends on success.
pub fn raise_open_files_limit() -> u64 {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = hard.min(OPEN_FILES_WANTED);
        if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() {
            return wanted;
        }
    }
    open_files_limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    fn least(groups: &str, mounts: &[Mount]) -> Option<u64> {
        group_dirs(groups.as_bytes(), mounts)
            .filter_map(|dir| left_in(&dir))
            .min()
    }

    #[test]
    fn the_tightest_of_a_group_and_its_parents_counts() {
        let tmp = tempfile::tempdir().unwrap();
        let point = tmp.path().to_str().unwrap();
        let stat = "anon 5\ninactive_file 300\nactive_file 100\n";
        write(
            &tmp.path().join("a/b"),
            &[("memory.max", "max\n"), ("memory.current", "900\n")],
        );
        let parent = [
            ("memory.max", "2000\n"),
            ("memory.current", "1900\n"),
            ("memory.stat", stat),
        ];
        write(&tmp.path().join("a"), &parent);
        let mounts = [Mount::fake(30, "/", point, "cgroup2", "cgroup2")];
        assert_eq!(
            least("0::/a/b\n", &mounts),
            Some(500),
            "cache can be given up"
        );
        write(&tmp.path().join("a"), &[("memory.high", "1600\n")]);
        assert_eq!(least("0::/a/b\n", &mounts), Some(100));
        assert_eq!(least("0::/\n", &mounts), None, "the root has no limit");
        assert_eq!(least("0::/gone/from/here\n", &mounts), None);
    }

    #[test]
    fn version_1_is_read_through_a_mount_that_shows_a_part() {
        let tmp = tempfile::tempdir().unwrap();
        let point = tmp.path().to_str().unwrap();
        let stat = "cache 9\ninactive_file 1\nactive_file 1\ntotal_inactive_file 70\ntotal_active_file 30\n";
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "600\n"),
            ("memory.stat", stat),
        ];
        write(tmp.path(), &files);
        let mounts = [Mount::fake(31, "/box/1", point, "cgroup", "cgroup")];
        let groups = "9:name=systemd:/x\n8:cpu,memory:/box/1\n0::/\n";
        assert_eq!(least(groups, &mounts), Some(500));
        assert_eq!(least("8:memory:/elsewhere\n", &mounts), Some(500));
        assert_eq!(least("8:cpu:/box/1\n", &mounts), None);
    }

    #[test]
    fn this_machine_has_memory_and_descriptors() {
        assert!(available_bytes() > 1 << 20);
        assert!(open_files_limit() > 3);
        assert!(raise_open_files_limit() >= open_files_limit().min(OPEN_FILES_WANTED));
    }
}
