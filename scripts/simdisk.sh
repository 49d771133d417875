#!/bin/bash
# A simulated 7,200 rpm disk as a block device, with a filesystem on it.
#
#   simdisk.sh start [SIZE]      serve the disk (default 8G, sparse, in memory), attach a loop device
#   simdisk.sh mkfs xfs|ext4|btrfs   make a filesystem on it and mount it at $SIMDISK_DIR/mnt
#   simdisk.sh mount [OPTIONS]   mount it (default noatime)        simdisk.sh umount
#   simdisk.sh on | off          keep the disk's pace, or answer at once (fill trees that way)
#   simdisk.sh reset             counters to zero
#   simdisk.sh set KEY VALUE     a parameter of the model
#   simdisk.sh stat              counters and parameters, one "key value" per line
#   simdisk.sh check             measure the model with fio; its figures as JSON lines
#   simdisk.sh dev               the name of the loop device
#   simdisk.sh stop              undo everything, also what is half done
#
# Everything lives in $SIMDISK_DIR (default /dev/shm/haul-simdisk), one disk in each such directory.
# $HDDSIM names the simulator; without it the example is built. Needs root, util-linux and FUSE.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
dir=${SIMDISK_DIR:-/dev/shm/haul-simdisk}
fuse=$dir/fuse mnt=$dir/mnt backing=$dir/backing
control=$fuse/control

die() { echo "simdisk: $*" >&2; exit 1; }
device() { cat "$dir/loop"; }
command_line() { printf '%s\n' "$*" >"$control"; }
# Not mountpoint(1): it cannot look at a mount whose server has died.
mounted() { grep -qF " $1 " /proc/self/mounts; }

start() {
    local size program=${HDDSIM:-} priority=()
    size=$(numfmt --from=iec "${1:-8G}")
    [[ ! -e $dir/pid ]] || die "$dir is in use; stop it first"
    if [[ -z $program ]]; then
        (cd "$here" && cargo build --quiet --release --example hddsim)
        program=${CARGO_TARGET_DIR:-$here/target}/release/examples/hddsim
    fi
    mkdir -p "$fuse" "$mnt"
    trap 'stop' ERR
    # A disk does not compete with the host for its processor: real-time priority, where allowed.
    ! chrt --fifo 1 true 2>/dev/null || priority=(chrt --fifo 1)
    setsid "${priority[@]}" "$program" --backing "$backing" --size "$size" "$fuse" \
        >"$dir/log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
    for _ in $(seq 100); do
        ! [[ -e $control ]] || break
        kill -0 "$(cat "$dir/pid")" 2>/dev/null || { cat "$dir/log" >&2; false; }
        sleep 0.05
    done
    [[ -e $control ]]
    losetup --find --show --direct-io=on "$fuse/disk" >"$dir/loop"
    local queue
    queue=/sys/block/$(basename "$(device)")/queue
    echo mq-deadline >"$queue/scheduler"
    echo 1 >"$queue/rotational"
    echo 1024 >"$queue/max_sectors_kb" # one FUSE request; a SATA disk's default is 1280
    trap - ERR
    device
}

make_filesystem() {
    ! mounted "$mnt" || umount "$mnt"
    command_line off
    case ${1:-} in
    xfs) mkfs.xfs -q -f -K "$(device)" ;;
    ext4) mkfs.ext4 -q -F -E nodiscard "$(device)" ;;
    btrfs) "$here/scripts/mkfs-btrfs.sh" -q -f -K "$(device)" ;;
    *) die "mkfs xfs, ext4 or btrfs" ;;
    esac
    mount -o noatime "$(device)" "$mnt"
}

stop() {
    local failed=0 pid
    ! [[ -e $control ]] || command_line off || true
    if mounted "$mnt"; then umount "$mnt" || umount -l "$mnt" || failed=1; fi
    if [[ -s $dir/loop ]]; then
        # Only while it is still ours: the number may have been given to another file.
        if [[ $(losetup --noheadings -O BACK-FILE "$(device)" 2>/dev/null) == "$fuse/disk" ]]; then
            losetup -d "$(device)" || failed=1
            for _ in $(seq 100); do
                losetup "$(device)" >/dev/null 2>&1 || break
                sleep 0.05
            done
        fi
    fi
    if mounted "$fuse"; then umount "$fuse" || umount -l "$fuse" || failed=1; fi
    if [[ -s $dir/pid ]]; then
        pid=$(cat "$dir/pid")
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        # An id may be used again after a crash: end it only if it is still the simulator.
        if [[ -r /proc/$pid/cmdline ]] && tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF -- "$fuse"; then
            kill "$pid" || true
        fi
    fi
    ((failed == 0)) || die "not everything could be undone; see $dir"
    rm -f "$dir/pid" "$dir/loop" "$dir/log" "$backing"
    rmdir "$fuse" "$mnt" "$dir" 2>/dev/null || true
}

# One fio run on the device: name, then fio's own options. Prints a JSON line.
measure() {
    local name=$1
    shift
    command_line reset
    fio --name="$name" --filename="$(device)" --direct=1 --output-format=json \
        --lat_percentiles=1 "$@" |
        python3 -c '
import json, sys
job = json.load(sys.stdin)["jobs"][0]
side = job["write" if job["write"]["total_ios"] else "read"]
print(json.dumps({"check": sys.argv[1], "iops": round(side["iops"], 1),
                  "mib_s": round(side["bw_bytes"] / 2**20, 1),
                  "mean_us": round(side["lat_ns"]["mean"] / 1e3, 1),
                  "p50_us": round(side["lat_ns"]["percentile"]["50.000000"] / 1e3, 1)}))' "$name"
}

check() {
    local random=(--rw=randread --bs=4k --time_based)
    command_line off
    measure off-4k-depth-1 "${random[@]}" --runtime=3 --ioengine=psync
    measure off-sequential --rw=read --bs=1M --runtime=3 --time_based --ioengine=psync
    command_line on
    measure sequential --rw=read --bs=1M --runtime=8 --time_based --ioengine=psync
    measure sequential-128k --rw=read --bs=128k --runtime=8 --time_based --ioengine=psync
    measure random-depth-1 "${random[@]}" --runtime=15 --ioengine=psync
    measure random-depth-4 "${random[@]}" --runtime=15 --ioengine=libaio --iodepth=4
    measure random-depth-32 "${random[@]}" --runtime=20 --ioengine=libaio --iodepth=32
    # The only one that writes: not on a disk whose contents matter.
    [[ ${1:-} != --writes ]] || measure random-write-fsync --rw=randwrite --bs=4k \
        --runtime=15 --time_based --ioengine=psync --fsync=32
    command_line off
}

case ${1:-} in
start) start "${2:-}" ;;
mkfs) make_filesystem "${2:-}" ;;
mount) mount -o "${2:-noatime}" "$(device)" "$mnt" ;;
umount) umount "$mnt" ;;
on | off | reset) command_line "$1" ;;
set) command_line set "$2" "$3" ;;
stat) cat "$control" ;;
check) check "${2:-}" ;;
dev) device ;;
stop) stop ;;
*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 1 ;;
esac
