#!/bin/bash
# Runs a command once on each of several real filesystems, and cleans up whatever happens.
#
#     scripts/filesystems.sh [--only ext4,xfs,btrfs] COMMAND [ARGUMENT...]
#
# Makes an image, mounts it by a loop device and runs the command with HAUL_TEST_DIR naming a
# directory on it. Where HAUL_REQUIRE is set, reflinks are required too on those that have them.
# Exits 0 if the command did each time. Needs root.
#
# An image has no name any more once it is mounted, so that nothing but the mount keeps it alive;
# what is mounted is unmounted at the end, also after a failure or a signal, together with what a
# killed test left mounted below.
set -euo pipefail

if [ "$(id -u)" != 0 ]; then
    echo "filesystems.sh: mounting needs root" >&2
    exit 1
fi
PATH=$PATH:/usr/sbin:/sbin

kinds=ext4,xfs,btrfs
if [ "${1:-}" = --only ]; then
    kinds=$2
    shift 2
fi
if [ $# = 0 ]; then
    echo "usage: filesystems.sh [--only ext4,xfs,btrfs] COMMAND [ARGUMENT...]" >&2
    exit 1
fi

# In memory if there is room for what the tests fill at most; the images are sparse.
size_mib=4096
place=${TMPDIR:-/tmp}
free_mib=$(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1 || echo 0)
if [ -w /dev/shm ] && [ "$free_mib" -gt "$size_mib" ]; then
    place=/dev/shm
fi

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "$place/haul-filesystems.XXXXXX")
chmod 755 "$work"
child=
finish() {
    if [ -n "$child" ]; then
        # The command's own process group, made by setsid below.
        kill -TERM -- "-$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    # The last mounted first. Lazily where a process is still in there.
    awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/self/mounts | tac |
        while read -r point; do
            umount "$point" 2>/dev/null || umount --lazy "$point"
        done
    rm -rf --one-file-system "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

make() {
    case $1 in
    # Twice the usual inodes: one test makes 70,000 files and copies them.
    ext4) mkfs.ext4 -q -i 4096 "$2" ;;
    xfs) mkfs.xfs -q -m reflink=1 "$2" ;;
    btrfs) "$here/mkfs-btrfs.sh" -q "$2" ;;
    *)
        echo "filesystems.sh: do not know $1" >&2
        return 1
        ;;
    esac
}

require=${HAUL_REQUIRE:-}
failed=
for kind in ${kinds//,/ }; do
    echo "== on $kind"
    mkdir -p "$work/disk"
    truncate --size="${size_mib}M" "$work/image"
    make "$kind" "$work/image"
    modprobe -q "$kind" 2>/dev/null || true
    mount -o loop "$work/image" "$work/disk"
    rm "$work/image"
    mkdir "$work/disk/tests"
    chmod 1777 "$work/disk/tests"
    if [ -n "$require" ] && [ "$kind" != ext4 ]; then
        export HAUL_REQUIRE=$require,reflink
    elif [ -n "$require" ]; then
        export HAUL_REQUIRE=$require
    fi
    # In the background, so that a signal to this script is heard at once.
    HAUL_TEST_DIR=$work/disk/tests setsid "$@" </dev/null &
    child=$!
    wait "$child" || failed="$failed $kind"
    child=
    umount "$work/disk"
done

if [ -n "$failed" ]; then
    echo "== failed on:$failed" >&2
    exit 1
fi
echo "== right on ${kinds//,/, }"
