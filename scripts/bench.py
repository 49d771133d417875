#!/usr/bin/env python3
"""Run haul beside other copiers, and keep every raw run.

    bench.py [SUITE...] [--runs 5] [--tools haul,cp,rsync] [--haul target/release/haul]
    bench.py --suite again             the second copy: the cases of bench_again.py
    bench.py --suite limit             the limit of the disk: the cases of bench_limit.py

Suites: aged-xfs aged-ext4 fresh-xfs fresh-ext4 linux-xfs (cold, from the simulated disk of hddsim),
warm-small warm-large (ext4 to ext4 in memory, cache warm), memory-1m (peak memory of haul at a
million files), limit (how near to what disk and kernel can do: bench_limit.py), again (second copies,
bench_again.py; each case of these two is a suite by itself), smoke (all of it at the smallest size, in a few minutes). Needs root, loop devices
and FUSE. METHODOLOGY.md says what is measured and why; report.py makes tables of the results.

Exits 1 if haul failed, left a wrong tree or was not found; what befalls others is recorded.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

import bench_again
import bench_limit
from bench_places import HERE, MIB, ColdSource, WarmSource, manifest, read_all, run, target_of

ROOT = HERE.parent

# Started in a process of its own: a child's peak memory begins at its parent's size (exec keeps
# the larger of the two), and this script grows. Clock and syncfs are here, next to the copy.
LAUNCHER = """
import ctypes, json, os, resource, sys, time
target, out, err, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
root = os.open(target, os.O_RDONLY)
actions = [(os.POSIX_SPAWN_OPEN, 0, '/dev/null', os.O_RDONLY, 0),
           (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
           (os.POSIX_SPAWN_OPEN, 2, err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)]
began = time.monotonic()
child = os.posix_spawnp(command[0], command, os.environ, file_actions=actions)
_, status, usage = os.wait4(child, 0)
copied = time.monotonic()
synced = libc.syncfs(root)
ended = time.monotonic()
print(json.dumps(dict(
    exit=os.waitstatus_to_exitcode(status), wall_s=round(ended - began, 4),
    copy_s=round(copied - began, 4), sync_s=round(ended - copied, 4), sync_failed=synced != 0,
    user_s=round(usage.ru_utime, 3), sys_s=round(usage.ru_stime, 3),
    peak_rss_kib=usage.ru_maxrss)))
"""

Tool = collections.namedtuple("Tool", "program command version")
# {src} and {dst} are directories without a slash at the end; {dst} does not exist yet.
TOOLS = {
    "haul": Tool("haul", "haul -q {haul_options} {src}/ {dst}/", "haul --version"),
    "cp": Tool("cp", "cp -aT {src} {dst}", "cp --version"),
    "rsync": Tool("rsync", "rsync -a {src}/ {dst}/", "rsync --version"),
    "tar": Tool(
        "tar",
        "bash -o pipefail -c 'mkdir {dst} && tar -C {src} --format=posix -cf - . | tar -C {dst} -xpf -'",
        "tar --version",
    ),
    "xcp": Tool("xcp", "xcp -r -T --no-progress {src} {dst}", "xcp --version"),
    "fcp": Tool("fcp", "fcp {src} {dst}", "fcp --version"),
    "cpz": Tool("cpz", "cpz {src} {dst}", "cpz --version"),
    "rclone": Tool(
        "rclone",
        "rclone copy -q --metadata --create-empty-src-dirs {src} {dst}",
        "rclone version",
    ),
    "blitcp": Tool("blitcp", "blitcp --no-dedup --no-cache {src} {dst}", "blitcp --version"),
}

# `case` (bench_again.Case) is for second copies: rivals of its own, and a destination that is not empty.
# `fs`: of the simulated disk with the source; without, `source_fs` in memory. `dest`: see target_of.
Suite = collections.namedtuple(
    "Suite", "fs tree image_mib haul_options only disk mkfs case dest source_fs",
    defaults=("", None, "8G", (), None, "ext4", "ext4"))
COLD = 768  # MiB of the destination's image
SUITES = {
    "aged-xfs": Suite("xfs", ["--shape", "aged"], COLD),
    "aged-ext4": Suite("ext4", ["--shape", "aged"], COLD),
    "fresh-xfs": Suite("xfs", ["--shape", "fresh"], COLD),
    "fresh-ext4": Suite("ext4", ["--shape", "fresh"], COLD),
    # Needs Debian's package linux-source.
    "linux-xfs": Suite("xfs", ["--shape", "linux", "--order", "aged"], 2560),
    "warm-small": Suite(
        None, ["--shape", "small"], 2560, "--verify=none", mkfs=("-N", "200000")),
    "warm-large": Suite(None, ["--shape", "large"], 3584, "--verify=none"),
    "memory-1m": Suite(
        None, ["--shape", "small", "--files", "1000000", "--mean", "300"], 2560,
        "--order=physical",  # the whole plan in memory: the dear case
        # Blocks of 1 KiB, so that a million files fit in memory twice.
        only=("haul",), mkfs=("-b", "1024", "-N", "1200000"),
    ),
    "smoke-aged-xfs": Suite("xfs", ["--shape", "aged", "--files", "300"], 256, disk="1G"),
    "smoke-fresh-ext4": Suite("ext4", ["--shape", "fresh", "--files", "300"], 256, disk="1G"),
    "smoke-warm": Suite(None, ["--shape", "small", "--files", "2000"], 256, "--verify=none"),
}
SUITES |= {name: Suite(**about)
           for name, about in (bench_again.SUITES | bench_limit.SUITES).items()}
SMOKE_TOOLS = "haul,cp,rsync"


def compare(expected, root):
    """How a copy differs from its source: counts by kind of difference, and one example each."""
    if not root.is_dir():
        return {"missing": {"count": len(expected), "example": "."}}
    actual = manifest(root)
    differences = {}

    def differ(what, name):
        entry = differences.setdefault(what, {"count": 0, "example": name})
        entry["count"] += 1

    for name, (kind, content, mode, mtime_ns, owner) in expected.items():
        if name not in actual:
            differ("missing", name)
            continue
        other = actual[name]
        where = "directory " if stat.S_ISDIR(kind) else ""
        for what, left, right in [
            ("kind", kind, other[0]), ("content", content, other[1]),
            (where + "mode", mode, other[2]), (where + "mtime", mtime_ns, other[3]),
            ("owner", owner, other[4]),
        ]:
            if left != right:
                differ(what, name)
    for name in actual.keys() - expected.keys():
        differ("extra", name)
    return differences


def content_differs(differences):
    return any(what in differences for what in ("missing", "kind", "content", "extra"))


class Bench:
    def __init__(self, args):
        self.args = args
        self.haul = pathlib.Path(args.haul).resolve()
        self.failed = False
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="haul-bench-", dir=args.work))
        (self.work / "home").mkdir()
        (self.work / "bin").mkdir()
        (self.work / "bin" / "haul").symlink_to(self.haul)
        search = [self.work / "bin", *(pathlib.Path(p) for p in args.peers.split(":")),
                  *os.environ["PATH"].split(":")]
        self.env = {"PATH": ":".join(map(str, search)), "LC_ALL": "C",
                    "HOME": str(self.work / "home"), "TMPDIR": str(self.work)}
        self.versions = {name: self.version(name) for name in self.wanted()}

    def wanted(self):
        names = [name for name in self.args.tools.split(",") if name]
        unknown = set(names) - TOOLS.keys()
        if unknown:
            sys.exit(f"bench: no such tool: {', '.join(sorted(unknown))}")
        return names

    def version(self, name):
        """The first line of its version; None if it is not installed."""
        tool = TOOLS.get(name) or Tool(name, "", f"{name} --version")
        if not shutil.which(tool.program, path=self.env["PATH"]):
            return None
        try:
            # fcp ends with 1 after printing its version.
            out = run(*shlex.split(tool.version), env=self.env, stderr=subprocess.STDOUT, cwd="/",
                      check=False)
            first = out.splitlines()[0].strip()
            return first if name in first else f"{name} {first}"
        except (OSError, IndexError):
            return None

    def session(self, name, suite, source):
        """What has to be known to believe, or repeat, the runs that follow."""
        git = ["git", "-C", str(ROOT)]
        commit = run(*git, "rev-parse", "HEAD").strip()
        sources = ["src", "Cargo.toml", "Cargo.lock", "benches", "scripts", ":!benches/results"]
        dirty = bool(run(*git, "status", "--porcelain", "--", *sources).strip())
        cpu = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo")
               if line.startswith("model name")]
        memory_kib = int(open("/proc/meminfo").readline().split()[1])
        record = dict(
            kind="session", suite=name, time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            commit=commit, dirty=dirty, kernel=os.uname().release, cpu=cpu[0] if cpu else "unknown",
            cpus=os.cpu_count(), memory_gib=round(memory_kib / MIB, 1), load=os.getloadavg()[0],
            versions=self.versions, tree=source.tree,
            filesystem=suite.fs or f"{suite.source_fs} in memory", destination=suite.dest,
            haul_options=suite.haul_options, runs=self.args.runs,
        )
        if self.versions.get("haul"):
            # The commit is the checkout's; this says whether two sessions ran the same binary.
            record["haul_sha1"] = hashlib.sha1(self.haul.read_bytes()).hexdigest()
        if isinstance(source, ColdSource):
            record["disk"] = source.parameters()
        return record

    def suite(self, name):
        suite = SUITES[name]
        if suite.case:
            return self.again(name, suite)
        names = [tool for tool in self.versions if not suite.only or tool in suite.only]
        present = [tool for tool in names if self.versions[tool]]
        for tool in sorted(set(names) - set(present)):
            print(f"{name}: {tool} is not installed, skipped", flush=True)
            self.failed |= tool == "haul" and not self.args.without_haul
        if present:
            self.rounds(name, suite, present, self.measure)

    def again(self, name, suite):
        """As a suite, with rivals (one program may be there with several options) for tools."""
        again = bench_again.Again(self, suite, read_all, manifest, compare, content_differs)
        self.rounds(name, suite, again.present(), again.measure)

    def rounds(self, name, suite, present, measure):
        work = self.work / name
        work.mkdir()
        closing = []
        try:
            source = (ColdSource if suite.fs else WarmSource)(work, suite)
            closing.append(source)
            target = target_of(work, suite, source)
            closing.append(target)
            self.keep(name, self.session(name, suite, source))
            for turn in range(self.args.runs):
                for tool in present:
                    record = measure(suite, source, target, tool)
                    self.keep(name, dict(kind="run", suite=name, tool=tool, turn=turn) | record)
                    self.judge(name, tool, turn, record)
        finally:
            for resource in reversed(closing):
                resource.close()
            shutil.rmtree(work, ignore_errors=True)

    def measure(self, suite, source, target, name):
        """One run of one tool: everything fresh, the clock round the copy and its syncfs."""
        target.format()
        copy = target.mount_point / "copy"
        text = TOOLS[name].command.format(
            src=shlex.quote(str(source.root)), dst=shlex.quote(str(copy)),
            haul_options=f"{suite.haul_options} {self.args.haul_options}")
        command = shlex.split(text)
        out, err = self.work / "stdout", self.work / "stderr"
        source.prepare()
        # The programs come from another disk: have them in memory, and only the data cold.
        self.version(name)
        source.begin()
        target.begin()
        measured = self.launch(str(target.mount_point), str(out), str(err), *command)
        disk, measured["dest_disk"] = source.end(), target.end()
        differences = compare(source.manifest, copy)
        target.unmount()
        return self.record(text, measured, disk, differences, out, err)

    def record(self, text, measured, disk, differences, out, err):
        show = lambda path: path.read_text(errors="replace")[-2000:]
        return dict(
            command=text.replace(str(self.work), "$WORK"), **measured, disk=disk,
            differences=differences, content_ok=not content_differs(differences),
            load=os.getloadavg()[0], stdout=self.plain(show(out)), stderr=self.plain(show(err)))

    def launch(self, *arguments):
        """Run the launcher in a session of its own, so that an interrupt ends the tool as well."""
        launcher = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", LAUNCHER, *arguments], text=True,
            stdout=subprocess.PIPE, env=self.env, cwd="/", start_new_session=True)
        try:
            return json.loads(launcher.communicate()[0])
        except BaseException:
            try:
                os.killpg(launcher.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            launcher.wait()
            raise

    def plain(self, text):
        return text.replace(str(self.work), "$WORK")

    def judge(self, suite, tool, turn, record):
        wrong = bool(record["exit"] or record["differences"] or record["sync_failed"])
        self.failed |= tool.split()[0] == "haul" and wrong
        disk = record["disk"] or record.get("dest_disk")
        busy = f" busy {disk['busy_s']:7.2f} s, {disk['seeks']:6.0f} seeks" if disk else ""
        notes = [f"exit {record['exit']}"] * bool(record["exit"])
        notes += [f"{what} {entry['count']}" for what, entry in record["differences"].items()]
        notes += [f"{what} {value}" for what, value in record.get("seen", {}).items()]
        print(f"{suite:17} #{turn} {tool:7} {record['wall_s']:8.2f} s{busy}"
              f" {record['peak_rss_kib'] / 1024:7.0f} MiB  {', '.join(notes)}", flush=True)

    def keep(self, suite, record):
        """At once: a later failure must not lose it."""
        results = pathlib.Path(self.args.results)
        results.mkdir(parents=True, exist_ok=True)
        with open(results / f"{self.args.label}-{suite}.jsonl", "a") as file:
            file.write(json.dumps(record, sort_keys=True) + "\n")

    def close(self):
        shutil.rmtree(self.work, ignore_errors=True)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="default: the four cold ones")
    parser.add_argument("--suite", action="append", default=[], dest="more", metavar="SUITE",
                        help="the same as SUITE; again stands for all cases of bench_again.py")
    parser.add_argument("--runs", type=int, help="of each tool, interleaved (default 5; smoke 1)")
    parser.add_argument("--tools", help="comma-separated (default: all; smoke: %s)" % SMOKE_TOOLS)
    parser.add_argument("--rivals", default="", metavar="TEXT",
                        help="of a case of bench_again.py: only those with TEXT in their name")
    parser.add_argument("--haul", default=ROOT / "target/release/haul", help="the binary")
    parser.add_argument("--haul-options", default="", help="further options for haul")
    parser.add_argument("--without-haul", action="store_true", help="do not miss it if it is missing")
    parser.add_argument("--peers", default="/opt/peers/bin:/opt/peers/blitcp/bin",
                        help="where else to look for tools")
    parser.add_argument("--results", help="directory (default benches/results; smoke: its tmp)")
    parser.add_argument("--label", default=time.strftime("%Y-%m-%d"), help="begins the files' names")
    parser.add_argument("--work", default="/dev/shm", help="where the images go: a tmpfs")
    args = parser.parse_args()
    args.suites += args.more
    for group, cases in (("again", bench_again), ("limit", bench_limit)):
        if group in args.suites:
            args.suites.remove(group)
            args.suites += [name for name in cases.SUITES if not name.startswith("smoke-")]
    smoke = args.suites == ["smoke"]
    if smoke:
        args.suites = [name for name in SUITES if name.startswith("smoke-")]
    args.suites = args.suites or [name for name, suite in SUITES.items()
                                  if name.startswith(("aged-", "fresh-"))]
    unknown = set(args.suites) - SUITES.keys()
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    args.runs = args.runs or (1 if smoke else 5)
    args.tools = args.tools or (SMOKE_TOOLS if smoke else ",".join(TOOLS))
    args.results = args.results or ROOT / "benches/results" / ("tmp" if smoke else "")
    if os.geteuid() != 0:
        sys.exit("bench: needs root, for mounts and loop devices")
    return args


def main():
    # So that an end by signal also unmounts.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    args = parse()
    bench = Bench(args)
    try:
        for name in args.suites:
            bench.suite(name)
    finally:
        bench.close()
    sys.exit(1 if bench.failed else 0)


if __name__ == "__main__":
    main()
