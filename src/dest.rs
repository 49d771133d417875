//! The destination's tree: its directories, made and opened below the root and
//! nowhere else, and the comparison of an entry with what is there.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};

use crate::backup::Backups;
use crate::error::{During, Failure, Op};
use crate::job::{Dedup, Options, Reflink};
use crate::plan::{Claims, Dir, Kind, Made, Taken, There};
use crate::sys::beneath::Root;
use crate::sys::metadata::{Stat, Target, Time};
use crate::sys::times::Limits;
use crate::sys::xattrs::{self, Place};
use crate::sys::{special, transfer};
use crate::work::checkpoint;

pub(crate) mod compare;
pub(crate) mod references;
mod share;
mod way;

use compare::Rules;
use references::References;

/// The destination, opened.
#[derive(Debug)]
pub(crate) struct Dest {
    pub(crate) root: Root,
    pub(crate) path: PathBuf,
    stat: Stat,
    euid: u32,
    /// Whether reflinks are wanted, and per source device whether they work.
    reflink: Reflink,
    shares: Mutex<HashMap<u64, bool>>,
    limits: OnceLock<Option<Limits>>,
    /// Times that differ by no more seconds are equal.
    modify_window: u64,
    pub(crate) rules: Rules,
    /// Where what is replaced goes.
    pub(crate) backups: Option<Backups>,
    /// Earlier copies whose unchanged files get one more name.
    pub(crate) references: References,
    /// What is in the way of a directory goes: see `way`.
    gives_way: bool,
    max_delete: Option<u64>,
    ignore_errors: bool,
    /// Bytes between two records of how far a large file is.
    pub(crate) checkpoint_bytes: u64,
    /// Bytes in what killed runs have left of files that are to be copied: the
    /// room that they take is those files'.
    pub(crate) parts_bytes: AtomicU64,
    /// Something of the sources could not be read.
    pub(crate) spoiled: AtomicBool,
    /// What went to make way for entries of another kind.
    pub(crate) cleared: Mutex<Vec<PathBuf>>,
    /// It is still to be made, somewhere below the root.
    is_missing: bool,
    /// Whether this run made the root.
    is_new: bool,
    /// The root's mode then, where no source's directory gives it one.
    dest_mode: u32,
    /// No device is tried any more: see [`Dest::settle_shares`].
    shares_are_settled: AtomicBool,
    /// Whether several sources may meet in one directory.
    meet: bool,
    /// See [`Made::taken`]; by directory, since several sources' may be one.
    taken: Mutex<HashMap<(u64, u64), Taken>>,
}

/// See [`Options::dest_mode`].
const DEST_MODE: u32 = 0o755;

impl Dest {
    /// The device of its root.
    pub(crate) fn dev(&self) -> u64 {
        self.stat.dev
    }

    /// Opens an existing directory as the destination.
    pub(crate) fn open(path: &Path, options: &Options) -> io::Result<Dest> {
        let root = Root::open(path)?;
        let stat = Stat::of(&root)?;
        Ok(Dest {
            root,
            path: path.to_path_buf(),
            stat,
            euid: nix::unistd::geteuid().as_raw(),
            // Bytes that nobody has seen have no digest.
            reflink: match options.dedup {
                Dedup::None => options.reflink,
                Dedup::Link | Dedup::Reflink => Reflink::Never,
            },
            shares: Mutex::default(),
            limits: OnceLock::new(),
            modify_window: options.modify_window,
            rules: Rules::new(options),
            backups: options
                .backup
                .as_ref()
                .map(|backup| Backups::new(backup, path)),
            references: References::default(),
            ignore_errors: options.ignore_errors,
            gives_way: options.delete,
            max_delete: options.max_delete,
            checkpoint_bytes: checkpoint::interval(options.checkpoint),
            parts_bytes: AtomicU64::new(0),
            spoiled: AtomicBool::new(false),
            cleared: Mutex::default(),
            is_missing: false,
            is_new: false,
            dest_mode: options.dest_mode.unwrap_or(DEST_MODE),
            shares_are_settled: AtomicBool::new(false),
            meet: false,
            taken: Mutex::default(),
        })
    }

    /// Says that the root was made just now, by this run.
    pub(crate) fn made_now(self) -> io::Result<Dest> {
        let dir = self.root.at(b"", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        drop_inherited(dir.into())?;
        Ok(Dest {
            is_new: true,
            ..self
        })
    }

    /// Says that the destination itself is still to be made in this directory:
    /// nothing is there yet.
    pub(crate) fn foreseen(self) -> Dest {
        Dest {
            is_missing: true,
            ..self
        }
    }

    /// Says that several sources will be copied here.
    pub(crate) fn meeting_of(self, sources: usize) -> Dest {
        Dest {
            meet: sources > 1,
            ..self
        }
    }

    /// Whether a directory is this destination's root.
    pub(crate) fn is(&self, stat: &Stat) -> bool {
        !self.is_missing && self.stat.is_same_inode(stat)
    }

    /// Whether nothing can lie in a directory: it is not there, or is the root that
    /// this run has made.
    pub(crate) fn is_new_in(&self, dir: &Dir) -> bool {
        let is_root = dir.parent.is_none() && dir.source.below.is_empty();
        dir.there == There::Nothing || (self.is_new && is_root)
    }

    /// What lies under a directory's path below the root.
    pub(crate) fn there(&self, relative: &[u8]) -> There {
        if self.is_missing {
            return There::Nothing;
        }
        let looked = self.root.at(relative, OFlag::O_PATH).and_then(Stat::of);
        match looked {
            Ok(stat) if stat.kind() == Kind::Dir => There::Dir,
            Ok(_) => There::Blocked,
            Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => There::Nothing,
            Err(_) => There::Blocked,
        }
    }

    /// Whether size and mtime say that the content is the same.
    pub(crate) fn is_same_content_by_stat(&self, source: &Stat, there: &Stat) -> bool {
        source.size == there.size
            && self.is_near_time(source.mtime, there.mtime)
            && !there.is_unfinished(source)
    }

    /// Whether two times are equal as far as it matters (`--modify-window`).
    pub(crate) fn is_near_time(&self, want: Time, have: Time) -> bool {
        want.is_within(self.modify_window, have) || self.is_same_time(want, have)
    }

    /// Whether a time is there, as far as the filesystem can hold it.
    pub(crate) fn is_same_time(&self, want: Time, have: Time) -> bool {
        want == have
            || self
                .limits()
                .is_some_and(|limits| limits.clamp(want) == have)
    }

    fn limits(&self) -> Option<Limits> {
        // A destination that cannot be tried out (read-only, full) has no
        // known limits: times are then compared as they are.
        *self.limits.get_or_init(|| Limits::probe(&self.root).ok())
    }

    /// Opens a directory, made first if it is missing, its parents too.
    pub(crate) fn dir(&self, dir: &Dir) -> Result<OwnedFd, Failure> {
        // A loop, not a recursion: trees may be deeper than a thread's stack.
        let mut unmade = Vec::new();
        let mut at = Some(dir);
        while let Some(dir) = at.filter(|dir| dir.made.get().is_none()) {
            unmade.push(dir);
            at = dir.parent.as_deref();
        }
        for dir in unmade.into_iter().rev() {
            dir.made
                .get_or_init(|| self.make(dir).map_err(|f| errno(&f)));
        }
        let path = || dir.dest_path_of(&self.path, b"");
        if let Some(Err(errno)) = dir.made.get() {
            return Err(Failure::new(
                Op::Create,
                path(),
                io::Error::from_raw_os_error(*errno),
            ));
        }
        self.root
            .dir(&dir.relative_dest())
            .during_at(Op::Create, path)
    }

    /// The same for an entry that shall be made in it, and is named where that
    /// fails.
    pub(crate) fn dir_for(&self, dir: &Dir, name: &[u8]) -> Result<OwnedFd, Failure> {
        self.dir(dir).map_err(|failure| {
            let path = dir.dest_path_of(&self.path, dir.dest_name(name));
            Failure { path, ..failure }.detail("its directory")
        })
    }

    fn taken(&self, stat: &Stat, folds_case: bool) -> Taken {
        let mut taken = self.taken.lock().unwrap_or_else(|e| e.into_inner());
        let new = || Arc::new(Claims::new(folds_case));
        taken
            .entry((stat.dev, stat.ino))
            .or_insert_with(new)
            .clone()
    }

    fn make(&self, dir: &Dir) -> Result<Made, Failure> {
        let path = dir.dest_path_of(&self.path, b"");
        let below = match &dir.parent {
            Some(_) => &dir.name,
            None => &dir.source.below,
        };
        if below.is_empty() {
            let fd = self.root.dir(b"").during(Op::Create, &path)?;
            return self.existing(&fd, self.is_new).during(Op::Create, &path);
        }
        let (parent, hands_down) = match &dir.parent {
            Some(parent) => {
                if let Some(Err(errno)) = parent.made.get() {
                    let e = io::Error::from_raw_os_error(*errno);
                    return Err(Failure::new(Op::Create, path, e));
                }
                let above = self.root.dir(&parent.relative_dest());
                let fd = above.during(Op::Create, &path)?;
                (fd, made(parent).is_some_and(|made| made.hands_down_acl))
            }
            None => (self.root.dir(b"").during(Op::Create, &path)?, true),
        };
        match mkdirat(&parent, &below[..], Mode::S_IRWXU) {
            Ok(()) => {
                let open =
                    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let fd =
                    openat(&parent, &below[..], open, Mode::empty()).during(Op::Create, &path)?;
                if hands_down {
                    drop_inherited(fd.into()).during(Op::SetMetadata, &path)?;
                }
                let taken = if self.meet {
                    let fd = self
                        .root
                        .dir(&dir.relative_dest())
                        .during(Op::Create, &path)?;
                    let stat = Stat::of(&fd).during(Op::Create, &path)?;
                    Some(self.taken(&stat, transfer::folds_case(&fd)))
                } else {
                    None
                };
                Ok(Made {
                    fresh: true,
                    mode_before: None,
                    hands_down_acl: false,
                    taken,
                })
            }
            Err(Errno::EEXIST) => {
                let open =
                    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                match openat(&parent, &below[..], open, Mode::empty()) {
                    Err(Errno::ENOTDIR | Errno::ELOOP) if self.may_give_way(dir) => {
                        self.make_way(dir, &parent, below)
                            .during(Op::Create, &path)?;
                        self.make(dir)
                    }
                    opened => {
                        let fd = opened.during(Op::Create, &path)?;
                        self.existing(&fd, false).during(Op::Create, &path)
                    }
                }
            }
            Err(errno) => Err(Failure::new(Op::Create, path, errno.into())),
        }
    }

    /// Looks at a directory that was there before. One of the user's own that
    /// they may not write to is opened up until its own mode is set at the end.
    fn existing(&self, fd: &OwnedFd, fresh: bool) -> io::Result<Made> {
        let stat = Stat::of(fd)?;
        let mut mode_before = None;
        if self.euid != 0 && stat.uid == self.euid && stat.mode & 0o700 != 0o700 {
            let mode = Mode::from_bits_truncate(stat.permissions() | 0o700);
            let flag = nix::sys::stat::FchmodatFlags::FollowSymlink;
            let path = special::proc_path(fd);
            nix::sys::stat::fchmodat(nix::fcntl::AT_FDCWD, path.as_path(), mode, flag)?;
            mode_before = Some(stat.permissions());
        } else if fresh {
            // Made by this run, private until the end; see `Options::dest_mode`.
            mode_before = Some(self.dest_mode);
        }
        let hands_down_acl = Place::Path(special::proc_path(fd).join(".")).hands_down_acl()?;
        let folds = transfer::folds_case(fd);
        let taken = (self.meet || folds).then(|| self.taken(&stat, folds));
        Ok(Made {
            fresh,
            mode_before,
            hands_down_acl,
            taken,
        })
    }

    /// Whether an ordinary user runs this.
    pub(crate) fn is_user(&self) -> bool {
        self.euid != 0
    }

    /// Whether something belongs to who runs this.
    pub(crate) fn is_own(&self, stat: &Stat) -> bool {
        stat.uid == self.euid
    }
}

/// The state of a directory at the destination, once made.
pub(crate) fn made(dir: &Dir) -> Option<&Made> {
    dir.made.get().and_then(|made| made.as_ref().ok())
}

fn errno(failure: &Failure) -> i32 {
    match failure.source.raw_os_error() {
        // O_DIRECTORY | O_NOFOLLOW on a symlink: what people need to hear is
        // that something else is in the way.
        Some(n) if n == Errno::ELOOP as i32 => Errno::ENOTDIR as i32,
        Some(n) => n,
        None => Errno::EIO as i32,
    }
}

/// A new directory got the ACLs that its parent hands down; they are the
/// destination's, not the source's, and its own come at the end.
fn drop_inherited(dir: File) -> io::Result<()> {
    let place = Place::Open(&dir);
    for name in ["system.posix_acl_default", "system.posix_acl_access"] {
        match place.remove(name.as_ref()) {
            Err(e) if e.raw_os_error() == Some(Errno::ENODATA as i32) => {}
            Err(e) if xattrs::is_unsupported(&e) => {}
            other => other?,
        }
    }
    Target::Open(&dir).set_permissions(0o700)
}

/// Shared ownership of a directory, for what outlives a listing.
pub(crate) type DirRef = Arc<Dir>;
