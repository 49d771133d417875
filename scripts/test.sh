#!/bin/bash
# All tests: formatting, lints, documentation, unit and integration tests, and as root the
# integration tests again on loop-mounted ext4, XFS and btrfs, where a skip is a failure.
#
#     scripts/test.sh
#
# As root on Debian it first installs what is missing. Leaves nothing behind but target/.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
exec </dev/null

# What the tests call, and the Debian package that has it.
tools=(
    cc:gcc
    setfacl:acl
    setfattr:attr
    setcap:libcap2-bin
    mkfs.ext4:e2fsprogs
    debugfs:e2fsprogs
    filefrag:e2fsprogs
    mkfs.xfs:xfsprogs
    mkfs.btrfs:btrfs-progs
    mkfs.vfat:dosfstools
    fusermount3:fuse3
    setpriv:util-linux
    hardlink:util-linux
    prlimit:util-linux
    mount:mount
    modprobe:kmod
    rsync:rsync
    strace:strace
    python3:python3
)
missing=()
for tool in "${tools[@]}"; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
root=
[ "$(id -u)" = 0 ] && root=yes
if [ ${#missing[@]} != 0 ]; then
    if [ -n "$root" ] && command -v apt-get >/dev/null; then
        echo "== installing ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    else
        echo "test.sh: without ${missing[*]} some tests are skipped" >&2
    fi
fi
if ! command -v cargo >/dev/null; then
    echo "test.sh: Rust (cargo, rustfmt, clippy) is needed, see Cargo.toml for its version" >&2
    exit 1
fi

step() {
    echo "== $*"
    "$@"
}

step cargo fmt --check
step cargo clippy --quiet --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --quiet --no-deps

# Here in memory where that can be: quick, and one more kind of filesystem.
if [ -z "${HAUL_TEST_DIR:-}" ] && [ -w /dev/shm ]; then
    export HAUL_TEST_DIR=/dev/shm
fi
if [ -z "$root" ]; then
    step cargo test --no-fail-fast
    echo "== not root: not tested on loop-mounted ext4, XFS and btrfs"
    exit
fi
can=root,caps,sparse,mount,loop,xfs,strace,rsync
HAUL_REQUIRE=$can step cargo test --no-fail-fast
unset HAUL_TEST_DIR
# Not once more: what asks nothing of the filesystem it lies on, or brings its own.
elsewhere=(
    patterns_mean_what_they_mean_to_rsync
    random_lists_copy_what_rsync_copies
    a_twin_with_all_the_names_it_can_have_is_followed_by_another
    what_a_killed_run_left_takes_no_room_from_the_next
)
HAUL_REQUIRE=$can,xattr,acl,fiemap step scripts/filesystems.sh \
    cargo test --no-fail-fast --test '*' -- "${elsewhere[@]/#/--skip=}"
