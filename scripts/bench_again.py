"""The cases of `bench.py --suite again`: second copies, and what goes with them.

A case is a tree, an edit that comes between the first copy and the second, what lies at the
destination beforehand, and its rivals: command lines, of which one program may have several.
bench.py has the clock, the images and the disk. Here is what comes before a run (the destination as
the first copy left it, caches as they should be) and after it (is the answer right, what was seen).

Each case is there once more as smoke-..., at the smallest size.
"""

import collections
import functools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess

LATER_NS = 1_700_000_000 * 10**9  # after every time that mktree.py gives

# given: what the destination holds before a run (None, "before" or "tree": of the source image);
# kept: a run does not change it, so it need not be made again for the next; edit: of the source
# after the first copy; verdict: nothing is copied, the exit code is the answer; seen: looked at
# after a run; prior: a run that comes before and is not timed, by rival; sample: answers are
# checked in the first round only.
Case = collections.namedtuple(
    "Case", "rivals given kept edit verdict seen prior sample",
    defaults=(None, False, None, False, (), {}, False))




COPY = {
    "haul": "haul -q {src}/ {dst}/",
    "haul --verify=none": "haul -q --verify=none {src}/ {dst}/",
    "rsync": "rsync -a {src}/ {dst}/",
    "rclone": "rclone {verb} -q --metadata --create-empty-src-dirs {src} {dst}",
}
FIRST = COPY | {"rclone": COPY["rclone"].replace("{verb}", "copy"), "cp": "cp -aT {src} {dst}"}
SECOND = COPY | {"rclone": COPY["rclone"].replace("{verb}", "sync"), "cp -u": "cp -auT {src} {dst}"}
DELTA = {
    "haul --delta": "haul --json --delta {src}/ {dst}/",
    "haul --delta --verify=none": "haul --json --delta --verify=none {src}/ {dst}/",
    "rsync --no-whole-file": "rsync -a --no-whole-file --stats {src}/ {dst}/",
}
VERIFY = {
    "haul": "haul verify -q {src} {dst}",
    "haul --cached": "haul verify -q --cached {src} {dst}",
    "rsync": "rsync -rcni --delete {src}/ {dst}/",
    "rclone": "rclone check -q {src} {dst}",
    "rclone --download": "rclone check -q --download {src} {dst}",
    "diff": "diff -rq {src} {dst}",
}
UNCHANGED = {
    "haul": COPY["haul"],
    "haul --order=physical": "haul -q --order=physical {src}/ {dst}/",
    "rsync": COPY["rsync"],
}
DEDUP = {
    "haul": COPY["haul"],
    "haul --dedup": "haul --json --dedup {src}/ {dst}/",
    "haul --dedup --no-cache": "haul --json --dedup --no-cache {src}/ {dst}/",
}


def pairs_of_cache(text, orders=("none", "physical")):
    """Without the cache, and with it, in both orders."""
    return {
        f"haul {text}--order={order}{cache}": f"haul --json {text}--order={order}{cache} {{src}}/ {{dst}}/"
        for order in orders for cache in (" --no-cache", " --cache")
    }


LEARN = pairs_of_cache("--dedup ", ("none",)) | pairs_of_cache("")
KNOWN = pairs_of_cache("--checksum ")


def files_of(root, least, most):
    """Paths of that size, sorted."""
    found = []
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if least <= os.stat(path).st_size <= most:
                found.append(path)
    return sorted(found)


def later(path):
    os.utime(path, ns=(LATER_NS, LATER_NS))


def rewrite_and_add(root, rewritten, added):
    rng = random.Random("again")
    small = files_of(root, 1, 10**6)
    for path in rng.sample(small, rewritten):
        size = os.stat(path).st_size
        pathlib.Path(path).write_bytes(rng.randbytes(size))
        later(path)
    for number in range(added):
        path = os.path.join(os.path.dirname(rng.choice(small)), f"new-{number:04d}.bin")
        pathlib.Path(path).write_bytes(rng.randbytes(rng.randint(2_000, 50_000)))
        later(path)


def flip(root):
    """One byte in the middle of the first of the largest files."""
    path = max(files_of(root, 0, 1 << 40), key=lambda path: os.stat(path).st_size)
    with open(path, "r+b") as file:
        file.seek(os.stat(path).st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x55]))
    later(path)


def touch_and_append(root, appended):
    """A few bytes of a small file, and more at the end of a large one."""
    paths = files_of(root, 1, 1 << 40)
    paths.sort(key=lambda path: os.stat(path).st_size)
    small, large = paths[len(paths) // 2], paths[-1]
    with open(small, "r+b") as file:
        file.write(b"changed")
    later(small)
    with open(large, "ab") as file:
        file.write(random.Random("append").randbytes(appended))
    later(large)


def suites():
    mixture, media = ["--shape", "mixture"], ["--shape", "media"]
    unchanged = ["--shape", "small", "--files", "100000"]
    million = ["--shape", "small", "--files", "1000000", "--mean", "100"]
    twins = ["--shape", "aged", "--twins", "0.25"]
    full = functools.partial
    found = {
        "again-mixture-first": (None, mixture, 512, Case(FIRST)),
        "again-mixture-second": (None, mixture, 768, Case(
            SECOND, "before", edit=full(rewrite_and_add, rewritten=100, added=300))),
        "again-mixture-byte": (None, mixture, 768, Case(
            SECOND | DELTA, "before", edit=flip, seen=("literal",))),
        "again-mixture-verify": (None, mixture, 512, Case(
            VERIFY, "tree", kept=True, verdict=True)),
        # From a disk: then the order of reading counts.
        "again-mixture-verify-xfs": ("xfs", mixture, 512, Case(
            VERIFY, "tree", kept=True, verdict=True)),
        "again-media-first": (None, media, 768, Case(FIRST)),
        "again-media-unchanged": (None, media, 768, Case(SECOND, "tree", kept=True)),
        "again-media-changed": (None, media, 1280, Case(
            SECOND | DELTA, "before", edit=full(touch_and_append, appended=10**6),
            seen=("literal",))),
        "again-100k": (None, unchanged, 2560, Case(UNCHANGED, "tree", kept=True)),
        "dedup-xfs": ("xfs", twins, 768, Case(DEDUP, seen=("twins", "read"))),
        "dedup-ext4": ("ext4", twins, 768, Case(DEDUP, seen=("twins", "read"))),
        "cache-1m-learn": (None, million, 2560, Case(LEARN, seen=("cache",), sample=True)),
        "cache-1m-known": (None, million, 2560, Case(
            KNOWN, "tree", kept=True, prior="haul -q -c --order=none {src}/ {dst}/",
            seen=("cache",), sample=True)),
    }
    result = {}
    for name, (fs, tree, mib, case) in found.items():
        inodes = {"again-100k": ("-N", "200000")}.get(name, ())
        if name.startswith("cache-1m"):
            inodes = ("-b", "1024", "-N", "1200000")
        result[name] = dict(fs=fs, tree=tree, image_mib=mib, mkfs=inodes, case=case)
    small = {
        "mixture": ["--groups", "60x2000-50000,2x2000000-4000000,1x10000000-10000000"],
        "media": ["--groups", "50x1000-100000,2x3000000-3000000"],
        "small": ["--files", "2000"], "aged": ["--files", "300"],
    }
    for name, about in list(result.items()):
        case = about["case"]
        if name == "again-mixture-second":
            case = case._replace(edit=full(rewrite_and_add, rewritten=5, added=15))
        tree = [*about["tree"], *small[about["tree"][1]]]
        result[f"smoke-{name}"] = about | dict(
            tree=tree, image_mib=256, case=case, mkfs=(), **({"disk": "1G"} if about["fs"] else {}))
    return result


SUITES = suites()


class Again:
    """What bench.py's clock runs between, for one case."""

    def __init__(self, bench, suite, read_all, manifest, compare, content_differs):
        self.bench, self.suite, self.case = bench, suite, suite.case
        self.read_all, self.manifest, self.compare = read_all, manifest, compare
        self.content_differs = content_differs
        self.made = False  # does the destination hold what `given` says?
        self.checked = set()

    def present(self):
        names = []
        for name in self.case.rivals:
            program = name.split()[0]
            if self.bench.args.rivals not in name:
                continue
            if program in self.bench.versions or program in ("diff", "sweep"):
                if program == "sweep" or self.bench.version(program):
                    names.append(name)
                else:
                    print(f"{program} is not installed, skipped", flush=True)
                    self.bench.failed |= program == "haul"
        return names

    def measure(self, suite, source, target, name):
        copy = target.mount_point / "copy"
        self.source, self.target = source, target
        self.give(source, target, copy)
        command = self.words(self.case.rivals[name], source, copy)
        cache = self.bench.work / "home" / ".cache"
        shutil.rmtree(cache, ignore_errors=True)
        if self.case.prior and "--no-cache" not in name:
            self.untimed(self.words(self.case.prior, source, copy)).check_returncode()
        source.prepare()
        if self.case.given:
            self.read_all(copy)  # unless it lies on a disk: that is cold
        self.bench.version(name.split()[0])  # the program, too, is in memory
        out, err = self.bench.work / "stdout", self.bench.work / "stderr"
        source.begin()
        target.begin()
        measured = self.bench.launch(str(target.mount_point), str(out), str(err), *command)
        disk, measured["dest_disk"] = source.end(), target.end()
        differences = {}
        if not self.case.sample or name not in self.checked:
            differences = self.compare(source.manifest, copy)
        if self.case.verdict:
            differences |= self.misjudged(name, source, copy, out)
        self.checked.add(name)
        target.keep_pace(False)
        # What another left has to be made anew for the next; what is as given stays.
        self.made = bool(self.case.kept and not differences)
        record = self.bench.record(shlex.join(command), measured, disk, differences, out, err)
        seen = {}
        for what in self.case.seen:
            seen |= getattr(self, f"see_{what}")(name, copy, out, disk)
        if not self.made:
            target.unmount()
        return record | dict(seen=seen)

    def give(self, source, target, copy):
        """The destination as the first copy left it."""
        if self.made:
            return
        target.keep_pace(False)
        target.format()
        if self.case.given:
            first = source.root.parent / self.case.given
            subprocess.run(["cp", "-aT", first, copy], check=True)
            os.sync()

    def words(self, text, source, copy):
        here = shlex.quote(str(pathlib.Path(__file__).resolve().parent))
        return shlex.split(text.format(
            src=shlex.quote(str(source.root)), dst=shlex.quote(str(copy)), here=here))

    def untimed(self, command, **options):
        return subprocess.run(command, env=self.bench.env, cwd="/", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

    def misjudged(self, name, source, copy, out):
        """A verifier has to call equal what is equal (the exit code says so, and silence), and once
        it is shown a file of the same size and times in which one byte is wrong."""
        if name.startswith("sweep"):
            return {}  # it judges nothing
        found = {"false alarm": dict(count=1, example=".")} if out.stat().st_size else {}
        if name in self.checked:
            return found
        path = files_of(copy, 1, 1 << 40)[7]
        status, data = os.stat(path), pathlib.Path(path).read_bytes()
        with open(path, "r+b") as file:
            file.write(bytes([data[0] ^ 0x55]))
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
        end = self.untimed(self.words(self.case.rivals[name], source, copy))
        with open(path, "r+b") as file:
            file.write(data[:1])
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
        if end.returncode == 0 and not end.stdout:
            found["damage not seen"] = dict(count=1, example=os.path.relpath(path, copy))
        return found

    def see_literal(self, name, copy, out, disk):
        """Bytes that had to be sent, as the tool says."""
        text = out.read_text(errors="replace")
        found = re.search(r'"literal_bytes": ?(\d+)|Literal data: ([\d,]+)', text)
        if not found:
            return {}
        return dict(literal_bytes=int((found[1] or found[2]).replace(",", "")))

    def see_twins(self, name, copy, out, disk):
        """What the destination takes, and what hardlink(1) would still find to link."""
        os.sync()
        blocks = self.untimed(["du", "-s", "-B1", str(copy)], check=True).stdout.split()[0]
        text = self.untimed(["hardlink", "-n", str(copy)], check=True).stdout
        linked = re.search(r"Linked: +(\d+)", text)[1]
        saved = re.search(r"Saved: +(.+)", text)[1]
        seen = dict(du_bytes=int(blocks), hardlink_links=int(linked), hardlink_saves=saved)
        found = re.search(r'"dedup_linked": ?(\d+)', out.read_text(errors="replace"))
        return seen | (dict(haul_linked=int(found[1])) if found else {})

    def see_stages(self, name, copy, out, disk):
        """Seconds of each stage, as haul says."""
        if not name.startswith("haul") or "--json" not in self.case.rivals[name]:
            return {}
        summary = json.loads(out.read_text().splitlines()[-1])
        return {f"{stage['stage']}_s": round(stage["seconds"], 2) for stage in summary["stages"]}

    def see_sweep(self, name, copy, out, disk):
        """Seconds to read the copy once, from its disk, in its order."""
        target = self.target
        target.begin()
        text = self.untimed(self.words("python3 {here}/sweep.py {dst}", self.source, copy), check=True)
        target.end()
        told = json.loads(text.stdout)
        return dict(sweep_look_s=told["look_s"], sweep_read_s=told["read_s"])

    def see_read(self, name, copy, out, disk):
        return dict(read_bytes=int(disk["read_bytes"])) if disk else {}

    def see_cache(self, name, copy, out, disk):
        """The database's size by row, and what it answered."""
        seen = {}
        file = self.bench.work / "home/.cache/haul/digests.sqlite"
        if file.exists():
            text = self.untimed(["haul", "cache", "--json"], check=True).stdout
            shown = json.loads(text.splitlines()[-1])
            # Also what is not in the main file yet.
            size = sum(part.stat().st_size for part in file.parent.iterdir())
            seen = dict(rows=shown["files"], bytes_per_row=round(size / max(shown["files"], 1), 1))
        summary = json.loads(out.read_text().splitlines()[-1])
        return seen | dict(cache_hits=summary.get("cache_hits"))
