//! What this machine and the filesystem under test can do. A missing ability skips a test out
//! loud, or fails it when `HAUL_REQUIRE` lists the ability (or says `all`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use nix::unistd::geteuid;

use super::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Tests run as root, in the initial user namespace.
    Root,
    /// `user.*` extended attributes on the filesystem under test.
    Xattr,
    /// POSIX ACLs there, and setfacl/getfacl.
    Acl,
    /// File capabilities, and setcap/getcap.
    Caps,
    /// Holes that SEEK_DATA tells apart from zeros.
    Sparse,
    /// FICLONE on the filesystem under test.
    Reflink,
    /// FIEMAP on the filesystem under test, and filefrag.
    Fiemap,
    /// Mounting tmpfs, overlay and bind mounts.
    Mount,
    /// Loop devices and mkfs.ext4.
    Loop,
    /// As `Loop`, for XFS.
    Xfs,
    /// strace, and permission to trace.
    Strace,
    /// rsync with -HAX.
    Rsync,
    /// A FAT filesystem in this kernel, and mkfs.vfat.
    Vfat,
    /// Case-insensitive directories on ext4.
    Casefold,
}

impl Ability {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// True when every ability is there. Says `SKIP` and why otherwise, or panics if it is required.
///
/// Tests open with `if !can(&[Ability::Root]) { return; }`.
pub fn can(abilities: &[Ability]) -> bool {
    for &ability in abilities {
        if let Err(why) = probe(ability) {
            skip(&ability.name(), &why);
            return false;
        }
    }
    true
}

/// Reports a skip for a reason that is found out only on the way.
pub fn skip(ability: &str, why: &str) {
    let test = thread::current().name().unwrap_or("?").to_owned();
    assert!(
        !required(ability),
        "{test}: HAUL_REQUIRE lists {ability}, but: {why}"
    );
    // Past the test runner's capture, which would swallow what a passing test prints.
    writeln!(std::io::stderr(), "SKIP {test}: {ability}: {why}").expect("stderr");
}

fn required(ability: &str) -> bool {
    let list = std::env::var("HAUL_REQUIRE").unwrap_or_default();
    list.split(',').any(|word| {
        let word = word.trim();
        word == ability || word == "all"
    })
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// The directory that decides which filesystem is tested.
pub fn test_dir() -> PathBuf {
    std::env::var_os("HAUL_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

fn probe(ability: Ability) -> Result<(), String> {
    match ability {
        Ability::Root => root(),
        Ability::Xattr => xattr(),
        Ability::Acl => acl(),
        Ability::Caps => root().and_then(|()| caps()),
        Ability::Sparse => sparse(),
        Ability::Reflink => reflink(),
        Ability::Fiemap => fiemap(),
        Ability::Mount => root().and_then(|()| mount()),
        Ability::Loop => root().and_then(|()| loop_device("mkfs.ext4", "ext4")),
        Ability::Xfs => root().and_then(|()| loop_device("mkfs.xfs", "xfs")),
        Ability::Strace => strace(),
        Ability::Rsync => succeeds("rsync", &["--version"]),
        Ability::Vfat => root().and_then(|()| vfat()),
        Ability::Casefold => root().and_then(|()| casefold()),
    }
}

fn root() -> Result<(), String> {
    if !is_root() {
        return Err("not root".into());
    }
    // Root of a user namespace can neither mknod nor chown to foreign ids.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if map.split_whitespace().nth(2) == Some("4294967295") {
        Ok(())
    } else {
        Err("root only inside a user namespace".into())
    }
}

fn scratch_file() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let file = scratch.path("probe");
    std::fs::write(&file, b"probe").expect("a file in the test directory");
    (scratch, file)
}

fn xattr() -> Result<(), String> {
    let (_scratch, file) = scratch_file();
    xattr::set(&file, "user.haul-probe", b"1").map_err(|error| error.to_string())
}

fn acl() -> Result<(), String> {
    let (_scratch, file) = scratch_file();
    succeeds("getfacl", &["--version"])?;
    succeeds("setfacl", &["-m", "u:1:r", text(&file)])
}

fn caps() -> Result<(), String> {
    let (_scratch, file) = scratch_file();
    succeeds("setcap", &["cap_net_raw+ep", text(&file)])
}

fn sparse() -> Result<(), String> {
    let (_scratch, file) = scratch_file();
    let open = std::fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .expect("probe");
    open.set_len(8 << 20).expect("set_len");
    let map = super::snapshot::data_map(&file).map_err(|error| error.to_string())?;
    let data: u64 = map.iter().map(|(from, to)| to - from).sum();
    if data < 1 << 20 {
        Ok(())
    } else {
        Err("holes are reported as data".into())
    }
}

fn reflink() -> Result<(), String> {
    let (scratch, file) = scratch_file();
    let clone = scratch.path("clone");
    succeeds("cp", &["--reflink=always", text(&file), text(&clone)])
}

fn fiemap() -> Result<(), String> {
    let (_scratch, file) = scratch_file();
    std::fs::write(&file, vec![1; 1 << 20]).expect("write");
    succeeds("filefrag", &["-s", "-v", text(&file)])?;
    if super::extents::extents(&file).is_empty() {
        return Err("filefrag shows no extents".into());
    }
    Ok(())
}

fn mount() -> Result<(), String> {
    let scratch = Scratch::new();
    scratch
        .try_mount("m", &["-t", "tmpfs", "-o", "size=1m", "none"])
        .map(drop)
}

fn loop_device(mkfs: &str, kind: &str) -> Result<(), String> {
    succeeds(mkfs, &["-V"])?;
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.split_whitespace().any(|word| word == kind) && succeeds("modprobe", &[kind]).is_err()
    {
        return Err(format!("this kernel has no {kind}"));
    }
    let scratch = Scratch::new();
    scratch.try_image("m", 300, &[mkfs, "-q"]).map(drop)
}

fn strace() -> Result<(), String> {
    succeeds(
        "strace",
        &[
            "-f",
            "-o",
            "/dev/null",
            "-e",
            "inject=fsync:error=EIO",
            "true",
        ],
    )
}

fn vfat() -> Result<(), String> {
    let scratch = Scratch::new();
    scratch.try_image("m", 40, &["mkfs.vfat"]).map(drop)
}

fn casefold() -> Result<(), String> {
    let scratch = Scratch::new();
    let options = ["mkfs.ext4", "-q", "-O", "casefold", "-E", "encoding=utf8"];
    let root = scratch.try_image("m", 64, &options)?;
    let folded = root.join("folded");
    std::fs::create_dir(&folded).expect("mkdir");
    succeeds("chattr", &["+F", text(&folded)])
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

/// Runs a tool; its last line of complaint becomes the reason.
pub fn succeeds(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{program} {}: {}",
        args.join(" "),
        words
            .lines()
            .find(|line| !line.is_empty())
            .unwrap_or("failed")
    ))
}
