//! The command line as it is typed: clap's structs, whose comments are the
//! text of `--help`. What they mean is decided in [`super`].

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const AFTER_HELP: &str = "\
Exit codes:
  0   everything was copied, and verified as asked
  1   the command line makes no sense
  2   content read back from the destination was wrong
  11  the job could not start or go on (nothing to read, no room, ...)
  12  a remote stream or a child process broke
  20  interrupted by a signal
  23  some entries were not copied exactly; each is named
  24  the only failures are source files that vanished after the scan
  Any other code but 0 is a failure too.

Examples:
  haul /mnt/old/ /mnt/new/          the contents of old, into new
  haul photos music /mnt/new        makes new/photos and new/music
  haul --verify photos /mnt/new     ... and reads all of it back from the medium
  haul plan /mnt/old/ --to /mnt/new/
  haul verify /mnt/old /mnt/new";

/// Copies trees in the order in which the disk holds them, and verifies
///
/// Copies SOURCEs into the directory DEST as `rsync -aHAX` would: bytes, holes,
/// links, modes, owners, ACLs, extended attributes and times. `SOURCE/` with a
/// slash means the contents of a directory, without one the directory itself.
/// Each source disk is read in one ascending sweep, and what was written is
/// read back and compared before it is called a copy.
///
/// Words go to standard error, JSON lines to standard output. Options follow
/// the verb. A source called `plan`, `verify` or `cache` is reached as `./plan`.
#[derive(Parser, Debug)]
#[command(
    name = "haul",
    version,
    override_usage = "haul [OPTIONS] SOURCE... DEST\n       \
                      haul plan [OPTIONS] SOURCE... [--to DEST]\n       \
                      haul verify [OPTIONS] SRC DST\n       \
                      haul dedup [OPTIONS] PATH\n       \
                      haul cache [OPTIONS]",
    after_help = AFTER_HELP,
    subcommand_help_heading = "Verbs (a source of this name is reached as ./plan)",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    args_override_self = true,
    disable_help_subcommand = true
)]
pub(super) struct Typed {
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
    #[command(flatten)]
    pub(super) copy: Copy,
}

#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // there is one, for a moment
pub(super) enum Verb {
    /// Print what would be copied, in which order, and write nothing
    ///
    /// The plan says how much there is, how it would be read, and how far the
    /// disk's head would travel in the order of the directories and in ours.
    #[command(args_override_self = true)]
    Plan(Plan),
    /// Compare two trees without copying
    ///
    /// Content, kinds, metadata, holes and links of everything in SRC are
    /// compared with DST, both read in the order of their disks. Failures and
    /// exit codes are those of a copy.
    #[command(args_override_self = true)]
    Verify(Compare),
    /// Turn files of the same content in a tree into hard links
    ///
    /// Only where owner, mode, attributes and mtime are equal too; others share
    /// extents where the filesystem can. Contents are compared byte for byte.
    #[command(args_override_self = true)]
    Dedup(Join),
    /// Show the digests that are remembered across runs, or forget them
    ///
    /// They are in haul/digests.sqlite under $XDG_CACHE_HOME, or ~/.cache. See
    /// --cache and --no-cache.
    #[command(args_override_self = true)]
    Cache(Cache),
}

#[derive(Args, Debug)]
pub(super) struct Join {
    /// The tree
    #[arg(value_name = "PATH")]
    pub(super) path: PathBuf,
    /// Only say what could be joined
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// How files of the same content become one
    #[arg(long, value_name = "HOW", default_value = "link")]
    pub(super) dedup: HowDedup,
    /// Link in spite of differences in: time, mode, owner, xattr
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(super) dedup_ignore: Vec<DedupMay>,
    /// Neither use nor keep remembered digests
    #[arg(long)]
    pub(super) no_cache: bool,
    /// Do not cross into other filesystems
    #[arg(short = 'x', long)]
    pub(super) one_file_system: bool,
    #[command(flatten)]
    pub(super) reading: Reading,
    #[command(flatten)]
    pub(super) talking: Talking,
}

#[derive(Args, Debug)]
pub(super) struct Copy {
    /// What to copy, and last the directory to copy it into
    ///
    /// DEST is made if only its last component is missing (see --mkpath).
    /// `SOURCE/` is the contents of a directory, `SOURCE` the directory itself.
    #[arg(value_name = "SOURCE... DEST", num_args = 1.., required = true, hide = true)]
    pub(super) paths: Vec<PathBuf>,
    /// Print the plan, write nothing
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// How the copy is checked; --verify alone means durable [default: read]
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "durable",
        default_value = "read",
        hide_default_value = true
    )]
    pub(super) verify: HowVerify,
    /// Whether files may share extents with the source
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(super) reflink: WhenReflink,
    #[command(flatten)]
    pub(super) choosing: Choosing,
    #[command(flatten)]
    pub(super) second: Second,
    #[command(flatten)]
    pub(super) filtering: Filtering,
    #[command(flatten)]
    pub(super) twins: Twins,
    /// Go on although the destination seems too small
    ///
    /// Before the first write, free space and free inodes of the destination
    /// are compared with what the plan needs. Too little ends the job (11);
    /// with --force it starts, and stops when the destination is full.
    #[arg(long)]
    pub(super) force: bool,
    /// Make missing parents of the destination
    #[arg(long)]
    pub(super) mkpath: bool,
    #[command(flatten)]
    pub(super) reading: Reading,
    #[command(flatten)]
    pub(super) talking: Talking,
    #[command(flatten)]
    pub(super) habit: Habit,
}

#[derive(Args, Debug)]
pub(super) struct Plan {
    /// What would be copied
    #[arg(value_name = "SOURCE", num_args = 1.., required = true)]
    pub(super) sources: Vec<PathBuf>,
    /// Where to: what is there already is left out of the plan
    #[arg(long, value_name = "DEST")]
    pub(super) to: Option<PathBuf>,
    #[command(flatten)]
    pub(super) choosing: Choosing,
    #[command(flatten)]
    pub(super) second: Second,
    #[command(flatten)]
    pub(super) filtering: Filtering,
    #[command(flatten)]
    pub(super) reading: Reading,
    #[command(flatten)]
    pub(super) talking: Talking,
    #[command(flatten)]
    pub(super) habit: Habit,
}

#[derive(Args, Debug)]
pub(super) struct Compare {
    /// The tree as it should be
    #[arg(value_name = "SRC")]
    pub(super) src: PathBuf,
    /// The tree that is looked at
    #[arg(value_name = "DST")]
    pub(super) dst: PathBuf,
    /// Let the kernel answer from its cache
    ///
    /// Without it, cached pages are dropped and both sides are read from their
    /// media: what is only right in memory counts for nothing.
    #[arg(long)]
    pub(super) cached: bool,
    /// With --files-from: listed directories with all that is below
    #[arg(short, long)]
    pub(super) recursive: bool,
    #[command(flatten)]
    pub(super) filtering: Filtering,
    /// Do not cross into other filesystems
    #[arg(short = 'x', long)]
    pub(super) one_file_system: bool,
    #[command(flatten)]
    pub(super) reading: Reading,
    #[command(flatten)]
    pub(super) talking: Talking,
}

#[derive(Args, Debug)]
pub(super) struct Cache {
    /// Forget files that are gone
    ///
    /// Each directory of which files are remembered is listed. What lies on a
    /// filesystem that is not mounted there now stays.
    #[arg(long, conflicts_with = "clear")]
    pub(super) prune: bool,
    /// Forget everything; begin a new file if it is damaged
    #[arg(long)]
    pub(super) clear: bool,
    #[command(flatten)]
    pub(super) talking: Talking,
}

/// What belongs to the copy.
#[derive(Args, Debug)]
pub(super) struct Choosing {
    /// Do not cross into other filesystems
    ///
    /// Mount points are made as empty directories.
    #[arg(short = 'x', long)]
    pub(super) one_file_system: bool,
    /// Compare content where size and mtime are equal
    ///
    /// Without it, a file of the same kind, size and mtime (to the nanosecond)
    /// at the destination counts as copied already.
    #[arg(short = 'c', long)]
    pub(super) checksum: bool,
}

/// What belongs to a second copy over a first.
#[derive(Args, Debug)]
#[command(next_help_heading = "Second copies")]
pub(super) struct Second {
    /// Leave files that are newer at the destination
    #[arg(short, long)]
    pub(super) update: bool,
    /// Leave whatever is at the destination already
    #[arg(long)]
    pub(super) ignore_existing: bool,
    /// Make nothing that is not at the destination already
    #[arg(long)]
    pub(super) existing: bool,
    /// Times that differ by at most SECONDS are equal
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(super) modify_window: u64,
    /// Delete at the destination what the source does not have
    ///
    /// After the copy, in the directories that were copied, and only if the
    /// sources could be read in full. What filters leave out is protected. A
    /// file in the way of a directory gives way before, and the reverse.
    #[arg(long, visible_alias = "del")]
    pub(super) delete: bool,
    /// Delete although a source could not be read in full
    #[arg(long, requires = "delete")]
    pub(super) ignore_errors: bool,
    /// Delete nothing if it would be more than N entries
    #[arg(long, value_name = "N", requires = "delete")]
    pub(super) max_delete: Option<u64>,
    /// Keep what is replaced or deleted, with a suffix or in --backup-dir
    #[arg(short, long)]
    pub(super) backup: bool,
    /// Keep it in DIR, under the same path; below DEST where relative
    #[arg(long, value_name = "DIR")]
    pub(super) backup_dir: Option<PathBuf>,
    /// What a kept file's name gets [default: ~, or nothing with --backup-dir]
    #[arg(long, value_name = "SUFFIX")]
    pub(super) suffix: Option<OsString>,
    /// Make a hard link to a file in DIR where it is unchanged
    ///
    /// For snapshots: DIR is an earlier copy, relative to DEST unless it is
    /// absolute. May be given several times.
    #[arg(long, value_name = "DIR")]
    pub(super) link_dest: Vec<PathBuf>,
    /// Write only the blocks of a large file that differ
    ///
    /// For files of 1 MiB and more: both sides are read. The old file stays
    /// until the new one is complete, which begins as a reflink of it where the
    /// filesystem can.
    #[arg(long)]
    pub(super) delta: bool,
    /// With --delta, write into the old file (not atomic)
    #[arg(long, requires = "delta")]
    pub(super) inplace: bool,
    /// Bytes between two checkpoints of a large file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, hide = true)]
    pub(super) checkpoint: Option<u64>,
}

/// Which entries count.
#[derive(Args, Debug)]
#[command(next_help_heading = "Filters, tried in their order: the first that matches decides")]
pub(super) struct Filtering {
    /// Leave out what matches PATTERN, as in rsync
    ///
    /// `/x` is at the root, `x/` is a directory, `*` stops at slashes, `**`
    /// does not. A directory that is left out is not entered.
    #[arg(long, value_name = "PATTERN")]
    pub(super) exclude: Vec<OsString>,
    /// Take what matches PATTERN, whatever comes later
    #[arg(long, value_name = "PATTERN")]
    pub(super) include: Vec<OsString>,
    /// Read such patterns from FILE, one a line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(super) exclude_from: Vec<PathBuf>,
    /// Read patterns of what to take from FILE
    #[arg(long, value_name = "FILE")]
    pub(super) include_from: Vec<PathBuf>,
    /// Copy only the paths listed in FILE, one a line, below the one source
    ///
    /// `-` is standard input. A directory is made without what is in it; with
    /// its names, if a slash follows; with all that is below with -r, which
    /// has to be given (-a does not imply it here). Blank lines and those that
    /// begin with # or ; are passed over. Filters apply as well.
    #[arg(long, value_name = "FILE")]
    pub(super) files_from: Option<PathBuf>,
    /// Lists and pattern files are separated by NUL, as find -print0 writes them
    #[arg(short = '0', long)]
    pub(super) from0: bool,
    /// Leave regular files that are larger than SIZE
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse)]
    pub(super) max_size: Option<u64>,
    /// Leave regular files that are smaller than SIZE
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse)]
    pub(super) min_size: Option<u64>,
}

/// What becomes of files with the same content.
#[derive(Args, Debug)]
#[command(next_help_heading = "Duplicates")]
pub(super) struct Twins {
    /// Turn files of the same content into hard links at the destination
    ///
    /// Only where owner, mode, attributes and mtime are equal too; else they
    /// share extents where the filesystem can. Contents are compared byte for
    /// byte. A later edit of one name of a hard link changes the other:
    /// --dedup=reflink shares extents only, which does not.
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "link"
    )]
    pub(super) dedup: Option<HowDedup>,
    /// Link in spite of differences in: time, mode, owner, xattr
    #[arg(long, value_name = "WHAT", value_delimiter = ',', requires = "dedup")]
    pub(super) dedup_ignore: Vec<DedupMay>,
    /// Remember digests for later runs [on with --dedup and -c]
    #[arg(long, overrides_with = "no_cache")]
    pub(super) cache: bool,
    /// Neither use nor keep remembered digests
    #[arg(long, overrides_with = "cache")]
    pub(super) no_cache: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HowDedup {
    /// Hard links; shared extents where metadata differ
    Link,
    /// Shared extents only
    Reflink,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DedupMay {
    /// Modification times
    Time,
    /// Permission bits
    Mode,
    /// Owner and group
    Owner,
    /// Extended attributes, ACLs among them
    Xattr,
}

/// How disks are read.
#[derive(Args, Debug)]
pub(super) struct Reading {
    /// In which order source disks are read
    #[arg(long, value_name = "ORDER", default_value = "auto")]
    pub(super) order: WhichOrder,
    /// Memory for buffers, as 512M or 2G [default: a share of what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) memory: Option<u64>,
    /// Threads at work [default: from the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
}

#[derive(Args, Debug)]
pub(super) struct Talking {
    /// List each entry
    #[arg(short, long, overrides_with = "quiet")]
    pub(super) verbose: bool,
    /// Say nothing but failures
    #[arg(short, long, overrides_with = "verbose")]
    pub(super) quiet: bool,
    /// Print JSON lines on standard output instead of words
    ///
    /// One object a line; `type` is `error`, `note`, `entry` (with -v), `plan`,
    /// `fatal`, or `summary`, which comes last. A path is {"text": ...}, or
    /// {"bytes": [...]} where it is not UTF-8.
    #[arg(long)]
    pub(super) json: bool,
    /// Draw a progress bar in spite of --json or -q
    #[arg(long, overrides_with = "no_progress", hide = true)]
    pub(super) progress: bool,
    /// Draw no progress bar
    #[arg(long, overrides_with = "progress", hide = true)]
    pub(super) no_progress: bool,
}

/// What is on already, so that nobody reads these fields.
#[derive(Args, Debug)]
#[command(next_help_heading = "On already, accepted for habit's sake")]
pub(super) struct Habit {
    /// Everything below, and owner, mode, times, devices, symlinks as they are
    #[arg(short, long)]
    pub(super) archive: bool,
    /// Directories with all that is in them (with --files-from only so)
    #[arg(short, long)]
    pub(super) recursive: bool,
    /// Hard links, as links
    #[arg(short = 'H', long)]
    pub(super) hard_links: bool,
    /// POSIX ACLs
    #[arg(short = 'A', long)]
    pub(super) acls: bool,
    /// Extended attributes
    #[arg(short = 'X', long)]
    pub(super) xattrs: bool,
    /// Holes of sparse files
    #[arg(short = 'S', long)]
    pub(super) sparse: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum HowVerify {
    /// Read every file back from the destination; the kernel may answer from its cache
    Read,
    /// Flush, drop cached pages, then read every file back from the medium
    Durable,
    /// Do not verify
    None,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum WhenReflink {
    /// Where the filesystem can; else copy
    Auto,
    /// A file that cannot be shared is a failure
    Always,
    /// Always copy the bytes
    Never,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum WhichOrder {
    /// Physical where a seek costs time, none where it does not
    Auto,
    /// By physical offset on the disk
    Physical,
    /// By inode number
    Inode,
    /// As listed, while the scan goes on
    None,
}

/// `4096`, `512M`, `2G`, `2GiB`: powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err("expected a number with K, M, G or T, as 512M".into()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a number with K, M, G or T, as 512M".to_string())?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("must not be zero".into()),
        Some(bytes) => Ok(bytes),
        None => Err("too large".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1 << 10),
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "1X", "1 G", "0", "99999999999T", "٣"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
