"""Where the trees of bench.py lie: images in memory, tmpfs, and the simulated disk."""

import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20


def run(*command, **options):
    """A helper command that has to succeed; its output."""
    options = dict(check=True, text=True, stdout=subprocess.PIPE) | options
    return subprocess.run([str(part) for part in command], **options).stdout


def target_of(work, suite, source):
    """The destination: ext4, xfs or btrfs in memory, tmpfs, disk-FS (a simulated disk of its own), or
    same (where the source is)."""
    if suite.dest == "same":
        return Same(source)
    if suite.dest.startswith("disk-"):
        return DiskTarget(work, suite)
    if suite.dest == "tmpfs":
        return Tmpfs(work, "dst", suite.image_mib)
    return Image(work, "dst", suite.image_mib, suite.mkfs, suite.dest)


class Target:
    """What most destinations need not do."""

    def begin(self):
        """The clock is about to start."""

    def end(self):
        """It has stopped: the counters of a disk."""

    def keep_pace(self, on):
        """Whether a disk is slow."""


class Image(Target):
    """A filesystem in a file in memory, mounted by loop."""

    # Nothing is left to be initialised in the background while others are being timed.
    MKFS = {
        "ext4": ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
        "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
        "btrfs": (f"{HERE}/mkfs-btrfs.sh", "-q", "-f", "-K"),
    }

    def __init__(self, directory, name, mib, mkfs=(), fs="ext4"):
        self.path, self.mount_point = directory / f"{name}.img", directory / name
        self.fs, self.mkfs = fs, mkfs if fs == "ext4" else ()
        self.mount_point.mkdir()
        # Its memory is taken now, so that the first run does not pay for all.
        with open(self.path, "wb") as image:
            os.posix_fallocate(image.fileno(), 0, mib * MIB)

    def format(self):
        """A new, empty filesystem, mounted."""
        self.unmount()
        run(*self.MKFS[self.fs], *self.mkfs, self.path)
        self.mount()

    def mount(self, options="noatime"):
        run("mount", "-o", f"loop,{options}", self.path, self.mount_point)

    def unmount(self):
        if os.path.ismount(self.mount_point):
            run("umount", self.mount_point)

    def close(self):
        self.unmount()
        self.path.unlink()


class Tmpfs(Target):
    def __init__(self, directory, name, mib):
        self.mib, self.mount_point = mib, directory / name
        self.mount_point.mkdir()

    def format(self):
        self.unmount()
        self.mount()

    def mount(self, options="noatime"):
        already = os.path.ismount(self.mount_point)
        options += ",remount" if already else f",size={self.mib}m"
        run("mount", "-t", "tmpfs", "-o", options, "tmpfs", self.mount_point)

    def unmount(self):
        if os.path.ismount(self.mount_point):
            run("umount", self.mount_point)

    def close(self):
        self.unmount()


class Simdisk:
    """A simulated disk, by simdisk.sh."""

    KEPT = ["reads", "read_bytes", "hits", "seeks", "busy_s", "strokes", "queued",
            "writes", "write_bytes", "flushes"]
    PARAMETERS = [
        "size_bytes", "turn_ms", "seek_third_ms", "seek_full_ms", "span_bytes", "rate_mb_s",
        "bus_mb_s", "lookahead_kib", "cache_mib", "depth", "patience", "idle_ms"]

    def __init__(self, directory, size):
        self.directory = directory
        self.env = os.environ | {"SIMDISK_DIR": str(directory)}
        self.mount_point = directory / "mnt"
        self.call("start", size)

    def call(self, *command):
        return run(HERE / "simdisk.sh", *command, env=self.env)

    def stat(self):
        return dict(line.split() for line in self.call("stat").splitlines())

    def remount(self, options):
        self.call("off")
        self.call("umount")
        self.call("mount", options)

    def begin(self):
        self.call("on")
        self.call("reset")

    def end(self):
        values = self.stat()
        self.call("off")
        disk = {name: float(values[name]) for name in self.KEPT}
        disk["mean_depth"] = round(disk.pop("queued") / max(disk["reads"], 1), 2)
        return disk

    def parameters(self):
        values = self.stat()
        return {name: float(values[name]) for name in self.PARAMETERS}

    def close(self):
        self.call("stop")


class DiskTarget(Target):
    """An empty filesystem on a simulated disk."""

    def __init__(self, work, suite):
        self.fs = suite.dest.removeprefix("disk-")
        self.disk = Simdisk(work / "dst-disk", suite.disk)
        self.mount_point = self.disk.mount_point

    def format(self):
        self.disk.call("mkfs", self.fs)

    def mount(self, options="noatime"):
        self.disk.call("mount", options)

    def unmount(self):
        self.disk.call("off")
        if os.path.ismount(self.mount_point):
            self.disk.call("umount")

    def begin(self):
        # Cold: what made its directories is forgotten.
        self.disk.remount("noatime")
        self.disk.begin()

    def end(self):
        return self.disk.end()

    def keep_pace(self, on):
        self.disk.call("on" if on else "off")

    def close(self):
        self.disk.close()


class Same(Target):
    """The source's own filesystem, put back to what it was before each run."""

    def __init__(self, source):
        self.source, self.mount_point = source, source.mount_point
        source.save()

    def format(self):
        self.source.restore()

    def mount(self, options="noatime"):
        pass

    def unmount(self):
        pass

    def close(self):
        pass


class WarmSource:
    """A tree in memory, read once before each run."""

    def __init__(self, work, suite):
        if suite.source_fs == "tmpfs":
            self.image = Tmpfs(work, "src", suite.image_mib)
        else:
            self.image = Image(work, "src", suite.image_mib, suite.mkfs, suite.source_fs)
        self.mount_point = self.image.mount_point
        self.is_shared = suite.dest == "same"
        try:
            self.fill(suite)
        except BaseException:
            self.close()  # nobody else knows of it yet
            raise

    def fill(self, suite):
        self.image.format()
        self.root = self.image.mount_point / "tree"
        self.tree = make_tree(self.root, suite)
        if suite.case and suite.case.edit:
            # What was copied the first time stays beside it.
            before = self.root.rename(self.image.mount_point / "before")
            run("cp", "-aT", before, self.root)
            suite.case.edit(self.root)
        self.manifest = manifest(self.root)
        if self.is_shared:
            return
        # Read-only, so that every run sees the same bits and no access times.
        if isinstance(self.image, Image):
            self.image.unmount()
        self.image.mount("ro,noatime")

    def save(self):
        """For a destination on the same filesystem: nothing, the copy is simply removed."""

    def restore(self):
        shutil.rmtree(self.image.mount_point / "copy", ignore_errors=True)
        os.sync()

    def prepare(self):
        read_all(self.root)

    def begin(self):
        pass

    def end(self):
        return None

    def close(self):
        self.image.close()


class ColdSource:
    """A tree on the simulated disk, mounted afresh and uncached before each run."""

    def __init__(self, work, suite):
        self.disk = Simdisk(work / "disk", suite.disk)
        self.mode = "noatime" if suite.dest == "same" else "ro,noatime"
        try:
            self.disk.call("mkfs", suite.fs)
            self.mount_point = self.disk.mount_point
            self.root = self.mount_point / "tree"
            self.tree = make_tree(self.root, suite)
            self.manifest = manifest(self.root)
            # No journal is left to be replayed, and later mounts may be read-only.
            self.disk.remount(self.mode)
        except BaseException:
            self.close()
            raise

    def save(self):
        self.disk.call("umount")
        self.copy_image(self.disk.directory / "backing", self.disk.directory / "saved")
        self.disk.call("mount", self.mode)

    def restore(self):
        self.disk.call("off")
        self.disk.call("umount")
        self.copy_image(self.disk.directory / "saved", self.disk.directory / "backing")
        self.disk.call("mount", self.mode)

    @staticmethod
    def copy_image(image, copy):
        run("cp", "--sparse=always", image, copy)

    def prepare(self):
        self.disk.remount(self.mode)
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def begin(self):
        self.disk.begin()

    def end(self):
        return self.disk.end()

    def parameters(self):
        return self.disk.parameters()

    def close(self):
        (self.disk.directory / "saved").unlink(missing_ok=True)
        self.disk.close()


def read_all(root):
    """From here on all of it is in memory."""
    for directory, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                while file.read(4 * MIB):
                    pass


def make_tree(root, suite):
    return json.loads(run(sys.executable, HERE / "mktree.py", root, *suite.tree))


def manifest(root):
    """Everything about a tree that a copy has to keep: path → (kind, content, mode, times, owner)."""
    found = {}

    def note(path, status):
        kind = stat.S_IFMT(status.st_mode)
        content = None
        if stat.S_ISREG(kind):
            with open(path, "rb", buffering=0) as file:
                content = (status.st_size, hashlib.file_digest(file, "sha1").digest())
        elif stat.S_ISLNK(kind):
            content = os.readlink(path)
        name = os.path.relpath(path, root)
        owner = (status.st_uid, status.st_gid)
        found[name] = (kind, content, status.st_mode & 0o7777, status.st_mtime_ns, owner)

    note(root, os.lstat(root))
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(directory, name)
            note(path, os.lstat(path))
    return found
