#!/usr/bin/env python3
"""Make a directory tree that is the same for the same seed and shape.

    mktree.py DIR [--shape aged] [--files 12347] [--mean 9000] [--seed 1] ...

A shape is a preset of three choices, each of which can also be given by itself:
how large the files are (--sizes), how the directories hang together (--dirs), and
in what order the files came to the disk (--order):

  fresh        directory by directory, by name: as a restored backup or an unpacked archive lies
  aged         in an order unlike that of the directories, each between neighbours that are
               deleted at the end: as years of use leave a disk
  interleaved  all files lie between each other, in pieces of 64 to 192 KiB: every file in many extents

Contents do not compress, and differ unless --duplicates asks for copies, or --twins for copies that
have mode and time in common as well. Times and modes come from the seed. Prints one JSON line that
says what was made.
"""

import argparse
import ctypes
import glob
import json
import math
import os
import random
import sys
import tarfile
import time

SHAPES = {
    "aged": dict(),
    "fresh": dict(order="fresh"),
    "small": dict(order="fresh", files=100_000, mean=4_000),
    "large": dict(order="fresh", files=3, mean=1_000_000_000, sizes="fixed", dirs="flat"),
    "mixed": dict(sizes="lognormal", files=5_000, mean=100_000),
    "deep": dict(dirs="deep", files=2_000),
    "flat": dict(dirs="flat", files=200_000, mean=1_000),
    "empty": dict(sizes="fixed", mean=0),
    "fragmented": dict(order="interleaved", dirs="flat", files=64, mean=4_000_000),
    # Few large files, each in hundreds of pieces that lie between those of the others.
    "fragments": dict(order="interleaved", dirs="flat", groups="60x4000000-64000000"),
    # Small files with large ones between them.
    "blend": dict(order="aged", groups="5000x1000-20000,20x50000000-50000000"),
    # 100,000 files in 2,500 directories, and as many empty ones in one.
    "twelve": dict(order="fresh", files=100_000, mean=12_000, per_directory=40),
    "empties": dict(order="fresh", files=100_000, mean=0, sizes="fixed", dirs="flat"),
    "linux": dict(order="fresh"),
    # The trees of two published comparisons of copiers, see METHODOLOGY.md, 6.5.
    "mixture": dict(order="fresh", groups="2000x2000-50000,20x2000000-4000000,4x10000000-10000000"),
    "media": dict(order="fresh", groups="1000x1000-100000,3x100000000-100000000"),
}
DEFAULTS = dict(order="aged", dirs="tree", sizes="exponential", files=12_347, mean=9_000,
                per_directory=25)
MODES = [0o644] * 12 + [0o600, 0o755, 0o444, 0o640]
EPOCH_NS = 1_500_000_000 * 10**9
YEARS_NS = 5 * 365 * 86_400 * 10**9
PIECE = 64 * 1024
CHUNK = 4 << 20
LIBC = ctypes.CDLL(None, use_errno=True)


class File:
    """One file of the plan; `content` seeds its bytes, so equal seeds and sizes are duplicates."""

    __slots__ = ("path", "size", "content", "mode", "mtime_ns")

    def __init__(self, path, size, content, mode, mtime_ns):
        self.path, self.size, self.content = path, size, content
        self.mode, self.mtime_ns = mode, mtime_ns

    def pieces(self, piece=CHUNK):
        rng = random.Random(self.content)
        for start in range(0, self.size, piece):
            yield rng.randbytes(min(piece, self.size - start))


class Given(File):
    """A file whose bytes are already there."""

    __slots__ = ("data",)

    def pieces(self, piece=CHUNK):
        for start in range(0, self.size, piece):
            yield self.data[start : start + piece]


def sync(root):
    """syncfs(2): whatever was written has its place on the disk from here on."""
    fd = os.open(root, os.O_RDONLY)
    try:
        if LIBC.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", root)
    finally:
        os.close(fd)


def plan_directories(kind, files, per_directory, rng):
    """Relative paths in the order of a walk; the first is the root itself."""
    if kind == "flat":
        return [""]
    count = max(1, files // per_directory)
    directories, depth = [""], {"": 0}
    for number in range(count):
        if kind == "deep":
            parent = directories[-1] if depth[directories[-1]] < 80 else ""
        else:
            # Squaring prefers the older: a few large branches, most of them two to five deep.
            parent = directories[int(rng.random() ** 2 * len(directories))]
            while depth[parent] >= 8:
                parent = os.path.dirname(parent)
        path = os.path.join(parent, f"dir-{number:05d}")
        depth[path] = depth[parent] + 1
        directories.append(path)
    return sorted(directories, key=lambda path: path.split("/") if path else [])


def draw_size(kind, mean, rng):
    if kind == "fixed":
        return mean
    if kind == "lognormal":
        sigma = 2.0
        return int(rng.lognormvariate(math.log(max(mean, 1)) - sigma**2 / 2, sigma))
    return int(rng.expovariate(1 / mean)) if mean else 0


def plan_files(args, directories, rng):
    """The files in directory order, named so that names, too, ascend in it."""
    per_directory = [0] * len(directories)
    for _ in range(args.files):
        per_directory[rng.randrange(len(directories))] += 1
    files, sizes = [], group_sizes(args.groups, rng)
    for directory, count in zip(directories, per_directory):
        for number in range(count):
            path = os.path.join(directory, f"file-{number:06d}.bin")
            size = sizes.pop() if sizes else draw_size(args.sizes, args.mean, rng)
            content = f"{args.seed}/{len(files)}"
            if files and rng.random() < args.duplicates:
                twin = rng.choice(files)
                size, content = twin.size, twin.content
            mtime_ns = EPOCH_NS + rng.randrange(YEARS_NS)
            files.append(File(path, size, content, rng.choice(MODES), mtime_ns))
            if args.twins and rng.random() < args.twins:
                twin = rng.choice(files)
                files[-1] = File(path, twin.size, twin.content, twin.mode, twin.mtime_ns)
    return files


def group_sizes(groups, rng):
    """COUNTxLEAST-MOST,...: so many sizes between these two, in no order."""
    sizes = []
    for group in filter(None, (groups or "").split(",")):
        count, least, most = map(int, group.replace("x", "-").split("-"))
        sizes += [rng.randint(least, most) for _ in range(count)]
    rng.shuffle(sizes)
    return sizes


def plan_linux(archive):
    """Directories, files and symbolic links of the kernel's sources, in the archive's order."""
    directories, files, links = [""], [], []
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            mtime_ns = int(member.mtime) * 10**9
            if not path:
                continue
            if member.isdir():
                directories.append(path)
            elif member.issym():
                links.append((path, member.linkname))
            elif member.isreg():
                file = Given(path, member.size, None, member.mode & 0o7777, mtime_ns)
                file.data = tar.extractfile(member).read()
                files.append(file)
    return directories, files, links


def make_directory(root, path):
    if path:
        os.mkdir(os.path.join(root, path), 0o755)


def create(root, file):
    fd = os.open(os.path.join(root, file.path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    try:
        for piece in file.pieces():
            view = memoryview(piece)
            while view:
                view = view[os.write(fd, view) :]
        os.utime(fd, ns=(file.mtime_ns, file.mtime_ns))
    finally:
        os.close(fd)


def write_fresh(root, directories, files):
    """Each directory followed by its files, as a walk, or tar, would lay them out."""
    inside = {path: [] for path in directories}
    for file in files:
        inside[os.path.dirname(file.path)].append(file)
    for path in directories:
        make_directory(root, path)
        for file in inside[path]:
            create(root, file)


def write_aged(root, directories, files, rng):
    """Over a life: each directory is born at some moment, after its parent, and each of its files
    at some later one, followed by a neighbour of like size, which goes at the end."""
    born = {}
    for path in directories:
        parent = born.get(os.path.dirname(path), 0.0) if path else 0.0
        born[path] = 0.0 if not path else rng.uniform(parent, 0.9)
    life = [(moment, path, None) for path, moment in born.items()]
    life += [(rng.uniform(born[os.path.dirname(file.path)], 1.0), file.path, file) for file in files]
    doomed = []
    for count, (_, path, file) in enumerate(sorted(life, key=lambda event: event[:2])):
        if file is None:
            make_directory(root, path)
            continue
        create(root, file)
        size = int(rng.expovariate(1 / (file.size + 1)))
        neighbour = File(f"{path}.gone", size, f"gone/{count}", 0o600, EPOCH_NS)
        create(root, neighbour)
        doomed.append(neighbour.path)
        if count % 1000 == 999:
            sync(root)  # or delayed allocation would lay the directories together again
    sync(root)
    for path in doomed:
        os.unlink(os.path.join(root, path))


def write_interleaved(root, directories, files, rng):
    """All files in turn get room for one more piece, in random turns; then their bytes. (Growing
    them by writing does not do: filesystems reserve room ahead of a file that grows.)"""
    for path in directories:
        make_directory(root, path)
    growing = []
    for file in files:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        growing.append((file, os.open(os.path.join(root, file.path), flags, file.mode), 0))
    opened = [(file, fd) for file, fd, _ in growing]
    while growing:
        rng.shuffle(growing)
        left = []
        for file, fd, at in growing:
            piece = min(file.size - at, rng.randint(1, 3) * PIECE)
            if piece:
                os.posix_fallocate(fd, at, piece)
                left.append((file, fd, at + piece))
        growing = left
    for file, fd in opened:
        for data in file.pieces():
            os.write(fd, data)
        os.utime(fd, ns=(file.mtime_ns, file.mtime_ns))
        os.close(fd)


def make(root, args):
    # Not of the order: aged and fresh hold the same files.
    rng = random.Random(f"{args.seed}/{args.dirs}/{args.sizes}/{args.files}/{args.mean}")
    if args.shape == "linux":
        directories, files, links = plan_linux(args.archive)
    else:
        directories = plan_directories(args.dirs, args.files, args.per_directory, rng)
        files, links = plan_files(args, directories, rng), []
    os.makedirs(root, exist_ok=True)
    if args.order == "aged":
        write_aged(root, directories, files, rng)
    elif args.order == "interleaved":
        write_interleaved(root, directories, files, rng)
    else:
        write_fresh(root, directories, files)
    for path, target in links:
        os.symlink(target, os.path.join(root, path))
    for path in sorted(directories, key=lambda path: -path.count("/")):
        mtime_ns = EPOCH_NS + random.Random(f"{args.seed}/{path}").randrange(YEARS_NS)
        os.utime(os.path.join(root, path), ns=(mtime_ns, mtime_ns))
    sync(root)
    return directories, files, links


def parse(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", help="made if missing; must be empty")
    parser.add_argument("--shape", choices=SHAPES, default="aged")
    parser.add_argument("--order", choices=["fresh", "aged", "interleaved"])
    parser.add_argument("--dirs", choices=["tree", "flat", "deep"])
    parser.add_argument("--sizes", choices=["exponential", "fixed", "lognormal"])
    parser.add_argument("--files", type=int)
    parser.add_argument("--mean", type=int, help="bytes per file, on average")
    parser.add_argument("--per-directory", type=int, help="files per directory, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duplicates", type=float, default=0.0, help="share of files, 0 to 1")
    parser.add_argument("--twins", type=float, default=0.0,
                        help="share of files that are copies, mode and time included")
    parser.add_argument("--groups", help="COUNTxLEAST-MOST,...: files by groups of sizes")
    parser.add_argument("--archive", help="for linux: default is that of Debian's linux-source")
    args = parser.parse_args(argv)
    for name, value in {**DEFAULTS, **SHAPES[args.shape]}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.groups:
        args.sizes = "groups"
        args.files = sum(int(group.partition("x")[0]) for group in args.groups.split(","))
    if args.shape == "linux" and not args.archive:
        found = sorted(glob.glob("/usr/src/linux-source-*.tar.*"))
        if not found:
            parser.error("no /usr/src/linux-source-*.tar.xz; install linux-source or name --archive")
        args.archive = found[-1]
    return args


def main():
    args = parse()
    if os.path.isdir(args.directory) and set(os.listdir(args.directory)) - {"lost+found"}:
        sys.exit(f"mktree: {args.directory} is not empty")
    os.umask(0)
    began = time.monotonic()
    directories, files, links = make(args.directory, args)
    if args.shape == "linux":
        args.dirs = args.sizes = os.path.basename(args.archive)
    summary = dict(
        shape=args.shape, order=args.order, dirs=args.dirs, sizes=args.sizes, seed=args.seed,
        duplicates=args.duplicates, twins=args.twins, directories=len(directories), files=len(files),
        links=len(links), bytes=sum(file.size for file in files),
        seconds=round(time.monotonic() - began, 1),
    )
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
