//! A 7,200 rpm disk for machines that have none.
//!
//! A FUSE filesystem that serves one big file, `disk`, at the pace of a spinning
//! disk, and a second, `control`, that switches the pace on and off and counts.
//! Under a loop device with direct I/O the partition, the filesystem, FIEMAP, the
//! page cache and the I/O scheduler are the kernel's own and only the head is
//! simulated; `hddsim/model.rs` says how. Data goes at once to a sparse backing
//! file; what takes time is the answer.
//!
//! `control` reads as lines of `key value`. Written to, it takes lines:
//! `on`, `off` (answer at once), `reset` (counters to zero, buffers dropped),
//! `set KEY VALUE` (any parameter of the model).

#[path = "hddsim/model.rs"]
mod model;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, TimeOrNow, WriteFlags,
};

use model::{Disk, Op, Params, Request, Step};

const DISK: INodeNo = INodeNo(2);
const CONTROL: INodeNo = INodeNo(3);
const FILES: [(INodeNo, &str); 2] = [(DISK, "disk"), (CONTROL, "control")];
const TTL: Duration = Duration::from_secs(1);
/// Requests that the kernel may have under way; more than the 32 that the disk looks at.
const MAX_BACKGROUND: u16 = 128;
/// One FUSE request carries at most this (the kernel's fs.fuse.max_pages_limit, 256 pages).
const MAX_WRITE: u32 = 1 << 20;
/// The last microseconds of a wait are spun: a sleep ends some 20 to 60 µs late.
const SPIN: Duration = Duration::from_micros(40);

/// Serve a simulated 7,200 rpm disk until the directory is unmounted.
#[derive(Parser)]
struct Args {
    /// Directory on which `disk` and `control` appear.
    mountpoint: PathBuf,
    /// File that holds the data; made if missing, kept afterwards. Put it on a tmpfs.
    #[arg(long)]
    backing: PathBuf,
    /// Size of the disk.
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 30)]
    size: u64,
}

/// How a request is answered once its time has come.
enum Reply {
    Read(ReplyData),
    Write(ReplyWrite),
    Flush(ReplyEmpty),
}

/// What the FUSE thread and the disk thread share under one lock.
struct State {
    on: bool,
    disk: Disk,
    requests: VecDeque<Request>,
    /// In step with `requests`, which the model sees alone.
    replies: VecDeque<Reply>,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    backing: File,
    size: u64,
    epoch: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64()
    }

    /// Hand a request to the disk thread, or answer it here when the model is off.
    fn submit(&self, op: Op, offset: u64, len: u64, reply: Reply) {
        let arrived = self.now();
        let mut state = self.lock();
        if state.on {
            state.requests.push_back(Request {
                op,
                offset,
                len,
                arrived,
            });
            state.replies.push_back(reply);
            self.wake.notify_one();
            return;
        }
        drop(state);
        self.answer(offset, len, reply, &mut Vec::new(), 0.0);
    }

    /// Fetch the data, wait for the moment at which the disk has it, and answer.
    fn answer(&self, offset: u64, len: u64, reply: Reply, buffer: &mut Vec<u8>, at: f64) {
        match reply {
            Reply::Read(reply) => {
                buffer.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
                let outcome = self.backing.read_exact_at(buffer, offset);
                self.wait_until(at);
                match outcome {
                    Ok(()) => reply.data(buffer),
                    Err(error) => reply.error(error.into()),
                }
            }
            Reply::Write(reply) => {
                self.wait_until(at);
                reply.written(u32::try_from(len).unwrap_or(u32::MAX));
            }
            Reply::Flush(reply) => {
                self.wait_until(at);
                reply.ok();
            }
        }
    }

    fn wait_until(&self, at: f64) {
        loop {
            let left = Duration::try_from_secs_f64(at - self.now()).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            match left.checked_sub(SPIN) {
                Some(sleep) if !sleep.is_zero() => thread::sleep(sleep),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// The disk thread: choose, wait, answer; empty the write cache when nothing is asked.
    fn run(&self) {
        // Sleeps are otherwise rounded up by 50 µs (prctl(2), PR_SET_TIMERSLACK).
        if let Err(error) = nix::sys::prctl::set_timerslack(1) {
            eprintln!("hddsim: timer slack: {error}");
        }
        let mut buffer = Vec::new();
        let mut state = self.lock();
        while !state.closing {
            if !state.on {
                state.disk.settle();
                while let Some((request, reply)) = state.take(0) {
                    self.answer(request.offset, request.len, reply, &mut buffer, 0.0);
                }
                state = self.sleep(state, None);
                continue;
            }
            let State { disk, requests, .. } = &mut *state;
            match disk.next(requests.iter()) {
                Some(Step::Serve { index, done }) => {
                    if let Some((request, reply)) = state.take(index) {
                        drop(state);
                        self.answer(request.offset, request.len, reply, &mut buffer, done);
                        state = self.lock();
                    }
                }
                Some(Step::Destage { done }) => state = self.busy(state, done),
                None if state.disk.dirty_bytes() > 0 => {
                    let idle = Duration::from_secs_f64(state.disk.idle_s());
                    state = self.sleep(state, Some(idle));
                    if state.on && state.requests.is_empty() {
                        let done = state.disk.destage(self.now());
                        state = self.busy(state, done.unwrap_or_default());
                    }
                }
                None => state = self.sleep(state, None),
            }
        }
    }

    fn busy<'a>(&'a self, state: MutexGuard<'a, State>, until: f64) -> MutexGuard<'a, State> {
        drop(state);
        self.wait_until(until);
        self.lock()
    }

    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        if state.closing {
            return state;
        }
        match limit {
            None => self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let woken = self.wake.wait_timeout(state, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn report(&self) -> String {
        let mut state = self.lock();
        let counters = state.disk.counters.clone();
        let mut text = format!(
            "model {}\nreads {}\nread_bytes {}\nwrites {}\nwrite_bytes {}\nflushes {}\nhits {}\n\
             destaged_bytes {}\ndirty_bytes {}\nseeks {}\nbusy_s {:.6}\nstrokes {:.4}\n\
             queued {}\nwaiting {}\nsize_bytes {}\n",
            if state.on { "on" } else { "off" },
            counters.reads,
            counters.read_bytes,
            counters.writes,
            counters.write_bytes,
            counters.flushes,
            counters.hits,
            counters.destaged_bytes,
            state.disk.dirty_bytes(),
            counters.seeks,
            counters.busy_s,
            counters.strokes,
            counters.queued,
            state.requests.len(),
            self.size,
        );
        for (name, value) in state.disk.params.fields() {
            // Writing to a String cannot fail.
            writeln!(text, "{name} {value}").unwrap_or_default();
        }
        text
    }

    /// Carry out one line written to `control`.
    fn command(&self, line: &str) -> Result<(), Errno> {
        let mut state = self.lock();
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => {}
            ["on"] => {
                // The pace begins from rest, not from wherever filling the disk left the head.
                let now = self.now();
                if !state.on {
                    state.disk.reset(now);
                }
                state.on = true;
            }
            ["off"] => state.on = false,
            ["reset"] => state.disk.reset(self.now()),
            ["set", key, value] => {
                let value = value.parse().map_err(|_| Errno::EINVAL)?;
                let mut fields = state.disk.params.fields().into_iter();
                let (_, field) = fields.find(|(name, _)| *name == key).ok_or(Errno::EINVAL)?;
                *field = value;
            }
            _ => return Err(Errno::EINVAL),
        }
        self.wake.notify_one();
        Ok(())
    }
}

impl State {
    fn take(&mut self, index: usize) -> Option<(Request, Reply)> {
        Some((self.requests.remove(index)?, self.replies.remove(index)?))
    }
}

/// The FUSE side: two files in one directory.
struct Mount(Arc<Shared>);

impl Mount {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_dir = ino == INodeNo::ROOT;
        let size = if ino == DISK { self.0.size } else { 0 };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_dir {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if is_dir { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Mount {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without FUSE_ASYNC_DIO the loop device would wait for each request in turn.
        let wanted = InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_ASYNC_DIO;
        let refused = |_| io::Error::other("this kernel's FUSE has no asynchronous direct I/O");
        config.add_capabilities(wanted).map_err(refused)?;
        let limit = |nearest| io::Error::other(format!("refused; nearest is {nearest}"));
        config.set_max_background(MAX_BACKGROUND).map_err(limit)?;
        config
            .set_congestion_threshold(MAX_BACKGROUND)
            .map_err(limit)?;
        let limit = |nearest| io::Error::other(format!("refused; nearest is {nearest}"));
        config.set_max_write(MAX_WRITE).map_err(limit)?;
        Ok(())
    }

    fn lookup(&self, _req: &fuser::Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match FILES.iter().find(|(_, known)| name == *known) {
            Some((ino, _)) => reply.entry(&TTL, &self.attr(*ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _req: &fuser::Request,
        ino: INodeNo,
        _fh: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr(ino));
    }

    /// `echo on > control` truncates first: accepted, and without effect.
    fn setattr(
        &self,
        _req: &fuser::Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _req: &fuser::Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(ino.0), flags);
    }

    fn read(
        &self,
        _req: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino == DISK {
            let len = u64::from(size).min(self.0.size.saturating_sub(offset));
            self.0.submit(Op::Read, offset, len, Reply::Read(reply));
        } else {
            let text = self.0.report();
            let from = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(text.len());
            let to = from.saturating_add(size as usize).min(text.len());
            reply.data(&text.as_bytes()[from..to]);
        }
    }

    fn write(
        &self,
        _req: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if ino == DISK {
            if offset.saturating_add(data.len() as u64) > self.0.size {
                return reply.error(Errno::ENOSPC);
            }
            match self.0.backing.write_all_at(data, offset) {
                Ok(()) => self
                    .0
                    .submit(Op::Write, offset, data.len() as u64, Reply::Write(reply)),
                Err(error) => reply.error(error.into()),
            }
            return;
        }
        let outcome = str::from_utf8(data)
            .map_err(|_| Errno::EINVAL)
            .and_then(|text| text.lines().try_for_each(|line| self.0.command(line)));
        match outcome {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _req: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.0.submit(Op::Flush, 0, 0, Reply::Flush(reply));
    }

    fn readdir(
        &self,
        _req: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (ino, name)) in FILES.iter().enumerate().skip(from) {
            if reply.add(*ino, index as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let mut open = File::options();
    let backing = open
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&args.backing)?;
    backing.set_len(args.size)?;
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            on: false,
            disk: Disk::new(Params::desktop(args.size as f64)),
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            closing: false,
        }),
        wake: Condvar::new(),
        backing,
        size: args.size,
        epoch: Instant::now(),
    });
    let disk = thread::spawn({
        let shared = Arc::clone(&shared);
        move || shared.run()
    });
    let outcome = fuser::mount(
        Mount(Arc::clone(&shared)),
        &args.mountpoint,
        &fuser::Config::default(),
    );
    shared.lock().closing = true;
    shared.wake.notify_one();
    disk.join()
        .map_err(|_| io::Error::other("the disk thread panicked"))?;
    outcome
}
