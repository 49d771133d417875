//! Runs the command under test: as whom, under which limits, and with an end to waiting.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::probe::is_root;
use super::ran::Ran;
use super::random::Random;
use super::scratch::{Scratch, USER};

/// A run that takes longer than this hangs. Far above what any test needs on a slow machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A call of the command, being put together.
#[derive(Clone, Default)]
pub struct Haul {
    args: Vec<OsString>,
    user_binary: Option<PathBuf>,
    by_user: bool,
    umask: Option<u32>,
    open_files: Option<u32>,
    tracer: Vec<OsString>,
    current_dir: Option<PathBuf>,
}

/// Runs `haul` with these arguments.
pub fn haul<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    Haul::new().args(args).run()
}

/// Copies the contents of one directory into another, and checks the machine-readable report
/// against the exit code. What most tests want.
pub fn copy(from: &Path, to: &Path) -> Ran {
    Haul::new().copy(from, to).run()
}

impl Haul {
    pub fn new() -> Haul {
        Haul::default()
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Haul {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Haul {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// `--json FROM/ TO`: the contents of one directory into another.
    pub fn copy(self, from: &Path, to: &Path) -> Haul {
        self.arg("--json").arg(from.join("")).arg(to)
    }

    /// Runs as the ordinary user: as another one where the tests run as root.
    pub fn by_user(mut self, scratch: &Scratch) -> Haul {
        self.by_user = true;
        if is_root() {
            self.user_binary = Some(reachable_binary(scratch));
        }
        self
    }

    pub fn umask(mut self, bits: u32) -> Haul {
        self.umask = Some(bits);
        self
    }

    /// `ulimit -n`, soft and hard.
    pub fn open_files(mut self, most: u32) -> Haul {
        self.open_files = Some(most);
        self
    }

    /// Puts a program and its options in front of the command, strace for instance.
    pub fn under<A: AsRef<OsStr>>(mut self, tracer: impl IntoIterator<Item = A>) -> Haul {
        self.tracer = tracer
            .into_iter()
            .map(|arg| arg.as_ref().to_owned())
            .collect();
        self
    }

    pub fn current_dir(mut self, dir: &Path) -> Haul {
        self.current_dir = Some(dir.to_owned());
        self
    }

    fn command(&self) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if self.by_user && is_root() {
            let ids = format!("--reuid={USER} --regid={USER} --clear-groups --");
            words.push("setpriv".into());
            words.extend(ids.split(' ').map(OsString::from));
        }
        if self.umask.is_some() || self.open_files.is_some() {
            let mut script = String::new();
            if let Some(bits) = self.umask {
                script += &format!("umask {bits:04o}; ");
            }
            if let Some(most) = self.open_files {
                script += &format!("ulimit -n {most}; ");
            }
            script += "exec \"$@\"";
            words.extend(["sh".into(), "-c".into(), script.into(), "sh".into()]);
        }
        words.extend(self.tracer.iter().cloned());
        words.push(
            self.user_binary
                .clone()
                .unwrap_or_else(|| env!("CARGO_BIN_EXE_haul").into())
                .into(),
        );
        words.extend(self.args.iter().cloned());

        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .process_group(0);
        if let Some(dir) = &self.current_dir {
            command.current_dir(dir);
        }
        command
    }

    pub fn start(&self) -> Running {
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let stdout = collect(child.stdout.take().expect("stdout"));
        let stderr = collect(child.stderr.take().expect("stderr"));
        Running {
            child,
            stdout,
            stderr,
            line: format!("{:?}", self.args),
        }
    }

    #[track_caller]
    pub fn run(&self) -> Ran {
        let ran = self.start().wait();
        if self.args.iter().any(|arg| arg == "--json") {
            ran.check_report();
        }
        ran
    }
}

/// A copy of the binary that the ordinary user can reach, if the built one lies in a private
/// directory.
fn reachable_binary(scratch: &Scratch) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_haul"));
    let open_to_all = built
        .ancestors()
        .skip(1)
        .all(|dir| std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0));
    if open_to_all {
        return built.to_owned();
    }
    let copy = scratch.path("haul-binary");
    if !copy.exists() {
        std::fs::copy(built, &copy).expect("copy of the binary");
    }
    copy
}

/// Calls `disturb` over and over on another thread while `work` runs.
pub fn while_running(mut disturb: impl FnMut(&mut Random) + Send, work: impl FnOnce()) {
    // Cleared also when `work` panics: the scope would wait for the other thread for ever.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !stop.load(Ordering::Relaxed) {
                disturb(&mut random);
            }
        });
        let _stop = Stop(&stop);
        work();
    });
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("output");
        bytes
    })
}

/// A command under way.
pub struct Running {
    child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
    line: String,
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        // An ended child stays a zombie until it is waited for: the number cannot be another's.
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("signal");
    }

    /// Sends the signal over and over until the command has ended.
    pub fn signal_until_end(&mut self, signal: Signal) {
        while !self.ended() {
            self.signal(signal);
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Waits until something is true, or the command has ended (false).
    pub fn until(&mut self, mut condition: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while !condition() {
            if self.ended() {
                return condition();
            }
            assert!(
                start.elapsed() < LIMIT,
                "waited in vain: haul {}",
                self.line
            );
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    pub fn wait(mut self) -> Ran {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            if start.elapsed() > LIMIT {
                // Its own process group: the child and what it was run through.
                kill(Pid::from_raw(-(self.child.id() as i32)), Signal::SIGKILL).expect("kill");
                let stderr = self.stderr.join().unwrap_or_default();
                panic!(
                    "HANGS: haul {}\n{}",
                    self.line,
                    String::from_utf8_lossy(&stderr)
                );
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        Ran {
            code: code_of(status),
            stdout: self.stdout.join().expect("stdout"),
            stderr: String::from_utf8_lossy(&self.stderr.join().expect("stderr")).into_owned(),
            line: self.line,
        }
    }
}

/// The exit code, or 128 + signal as a shell would say.
fn code_of(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
