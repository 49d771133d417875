#!/bin/sh
# mkfs.btrfs, which looks at whatever is mounted and gives up when it meets a loop device whose file
# lay on a mount that has died, anywhere on the machine. So here nothing is mounted. Needs root.
#
#     mkfs-btrfs.sh [OPTION...] DEVICE_OR_IMAGE
exec unshare --mount sh -c '
    mount -t tmpfs none /proc && mkdir /proc/self && : >/proc/self/mounts && exec mkfs.btrfs "$@"
' sh "$@"
