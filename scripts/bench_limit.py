"""The cases of `bench.py --suite limit`: how near a copy comes to what disk and kernel can do.

Cold ones read from the simulated disk, or write to one; warm ones go from memory to memory. A case is
a tree, where it lies and where it goes, and its rivals (see bench_again.Case). Each group is there
once more as smoke-limit-..., at the smallest size.
"""

from bench_again import Case

COPY = {
    "haul": "haul --json {src}/ {dst}/",
    "rsync": "rsync -a {src}/ {dst}/",
    "cp": "cp -aT {src} {dst}",
}
BLITCP = {"blitcp": "blitcp --no-dedup --no-cache {src} {dst}"}
XCP = {"xcp": "xcp -r -T --no-progress {src} {dst}"}
UNVERIFIED = {"haul --verify=none": "haul --json --verify=none {src}/ {dst}/"}
WARM = COPY | UNVERIFIED | XCP | {
    "cpz": "cpz {src} {dst}",
    "tar": "bash -o pipefail -c 'mkdir {dst} && tar -C {src} --format=posix -cf - . | tar -C {dst} -xpf -'",
}
LARGE = COPY | UNVERIFIED
REFLINK = {
    "haul": COPY["haul"],
    "haul --reflink=always": "haul --json --reflink=always {src}/ {dst}/",
    "cp --reflink=always": "cp -aT --reflink=always {src} {dst}",
}
# Extents are not shared: as between two partitions of a disk.
SAME = {
    "haul": "haul --json --reflink=never {src}/ {dst}/",
    "rsync": COPY["rsync"],
    "cp": "cp -aT --reflink=never {src} {dst}",
}
# What it costs to be told: with and without, in the same rounds.
TOLD = {
    "haul": "haul -q --no-cache {src}/ {dst}/",
    "haul --json": "haul --json --no-cache {src}/ {dst}/",
    "haul -v": "haul -v --no-cache {src}/ {dst}/",
    "haul --progress": "haul --progress --no-cache {src}/ {dst}/",
    "haul --cache": "haul -q --cache {src}/ {dst}/",
}
# Reads a tree once, in its physical order, and does nothing else.
SWEEP = {"sweep": "python3 {here}/sweep.py {dst}"}
VERIFY = SWEEP | {
    "haul verify": "haul verify -q {src} {dst}",
    "rsync -rcn": "rsync -rcni --delete {src}/ {dst}/",
}
DURABLE = UNVERIFIED | {"haul --verify": "haul --json --verify {src}/ {dst}/"}

AGED, FRESH = ["--shape", "aged"], ["--shape", "fresh"]
FRAGMENTS, BLEND = ["--shape", "fragments"], ["--shape", "blend"]
TWELVE, EMPTIES = ["--shape", "twelve"], ["--shape", "empties"]
GB3 = ["--shape", "large"]
GB8 = ["--shape", "large", "--files", "1", "--mean", "8000000000"]
KB1 = ["--shape", "small", "--sizes", "fixed", "--mean", "1024"]


def suites():
    found = {}

    def add(name, tree, mib, rivals, **about):
        case = Case(rivals, **about.pop("case", {}))
        inodes = about.pop("mkfs", ())
        found[f"limit-{name}"] = dict(fs=about.pop("fs", None), tree=tree, image_mib=mib, case=case,
                                      mkfs=inodes, **about)

    stages = dict(seen=("stages",))
    for fs in ("xfs", "ext4"):
        add(f"aged-{fs}", AGED, 768, COPY | BLITCP, fs=fs, case=stages)
        add(f"fresh-{fs}", FRESH, 768, COPY | BLITCP | XCP, fs=fs, case=stages)
        for files in (35_000, 100_000):
            add(f"aged-{files // 1000}k-{fs}", [*AGED, "--files", str(files), "--mean", "10000"],
                2048, COPY | BLITCP, fs=fs, disk="16G", mkfs=("-N", "200000"), case=stages)
        add(f"fragments-{fs}", FRAGMENTS, 2560, COPY, fs=fs, case=stages)
        add(f"mixed-{fs}", BLEND, 1536, COPY, fs=fs, case=stages)
        add(f"same-{fs}", AGED, 0, SAME, fs=fs, dest="same", case=stages)
        add(f"same-large-{fs}", BLEND, 0, SAME, fs=fs, dest="same", case=stages)
        add(f"to-disk-{fs}", AGED, 512, COPY, dest=f"disk-{fs}", case=stages)
        add(f"to-disk-large-{fs}", BLEND, 2560, COPY, dest=f"disk-{fs}", case=stages)
        add(f"verify-{fs}", AGED, 512, VERIFY, dest=f"disk-{fs}",
            case=dict(given="tree", kept=True, verdict=True))
        add(f"verify-large-{fs}", BLEND, 2560, VERIFY, dest=f"disk-{fs}",
            case=dict(given="tree", kept=True, verdict=True))
        add(f"durable-{fs}", AGED, 512, DURABLE, dest=f"disk-{fs}", case=dict(seen=("stages", "sweep")))
        add(f"durable-large-{fs}", BLEND, 2560, DURABLE, dest=f"disk-{fs}",
            case=dict(seen=("stages", "sweep")))
        add(f"cold-large-{fs}", GB3, 3584, COPY, fs=fs, case=stages)
        add(f"twelve-{fs}", TWELVE, 2560, WARM, source_fs=fs, dest=fs, mkfs=("-N", "200000"))
        add(f"empties-{fs}", EMPTIES, 512, WARM, source_fs=fs, dest=fs, mkfs=("-N", "200000"))
        add(f"large-{fs}", GB3, 3584, LARGE, source_fs=fs, dest=fs)
    for name, tree, mib in (("twelve", TWELVE, 2560), ("empties", EMPTIES, 512), ("large", GB3, 3584),
                            ("8gb", GB8, 8192)):
        add(f"{name}-tmpfs", tree, mib, LARGE if name in ("large", "8gb") else WARM,
            source_fs="tmpfs", dest="tmpfs")
    for fs in ("xfs", "btrfs"):
        for name, tree, mib in (("twelve", TWELVE, 3072), ("large", GB3, 3584)):
            add(f"reflink-{name}-{fs}", tree, mib, REFLINK, source_fs=fs, dest="same")
    for files in (250_000, 500_000, 1_000_000):
        add(f"kb-{files // 1000}k-tmpfs", [*KB1, "--files", str(files)], 8192,
            {"haul --verify=none": UNVERIFIED["haul --verify=none"], "cp": COPY["cp"]},
            source_fs="tmpfs", dest="tmpfs", case=dict(sample=True))
    add("told-tmpfs", TWELVE, 2560, TOLD, source_fs="tmpfs", dest="tmpfs", case=dict(sample=True))

    small = {"aged": ["--files", "200"], "fragments": ["--groups", "4x2000000-4000000"],
             "blend": ["--groups", "60x1000-20000,2x3000000-3000000"], "twelve": ["--files", "500"]}
    for name in ("fragments-ext4", "mixed-xfs", "same-ext4", "to-disk-xfs", "verify-ext4",
                 "durable-ext4", "twelve-tmpfs", "reflink-twelve-xfs", "told-tmpfs"):
        about = found[f"limit-{name}"]
        tree = [*about["tree"], *small[about["tree"][1]]]
        found[f"smoke-limit-{name}"] = about | dict(tree=tree, image_mib=384, disk="1G", mkfs=())
    return found


SUITES = suites()
