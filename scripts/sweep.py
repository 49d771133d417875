#!/usr/bin/env python3
"""Read a tree once in its physical order, and do nothing else: what reading can cost at least.

    sweep.py DIR     prints the bytes read, and the seconds of looking and of reading

Names are listed and looked at with sixteen requests in flight, places asked for with FIEMAP, extents
read in ascending order with a window asked for ahead. What haul does is measured against this.
"""

import collections
import concurrent.futures
import fcntl
import json
import os
import struct
import sys
import time

WINDOW = 16 << 20
STEP = 128 << 10
FIEMAP = 0xC020660B


def extents(fd):
    """(physical, logical, length) of each extent."""
    found, at = [], 0
    while True:
        request = bytearray(struct.pack("=QQLLLL", at, 1 << 62, 0, 0, 128, 0) + bytes(56 * 128))
        fcntl.ioctl(fd, FIEMAP, request)
        count = struct.unpack_from("=L", request, 20)[0]
        for number in range(count):
            logical, physical, length, _, _, flags = struct.unpack_from("=QQQQQL", request, 32 + 56 * number)
            found.append((physical, logical, length))
            if flags & 1:
                return found
            at = logical + length
        if not count:
            return found


def look(path):
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        return [(place, path, logical, min(length, size - logical))
                for place, logical, length in extents(fd) if logical < size]
    finally:
        os.close(fd)


def files_below(root):
    paths = []
    for directory, _, names in os.walk(root):
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.inode()):
            if entry.is_file(follow_symlinks=False):
                paths.append((entry.inode(), entry.path))
    return [path for _, path in sorted(paths)]


def main():
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        reads = sorted(read for some in pool.map(look, files_below(sys.argv[1])) for read in some)
    looked = time.monotonic()
    ahead, asked, total = collections.deque(), 0, 0
    reads = iter(reads)
    while True:
        while asked < WINDOW and len(ahead) < 512 and (read := next(reads, None)):
            _, path, offset, length = read
            fd = os.open(path, os.O_RDONLY)
            for at in range(offset, offset + length, STEP):
                os.posix_fadvise(fd, at, min(STEP, offset + length - at), os.POSIX_FADV_WILLNEED)
            ahead.append((fd, offset, length))
            asked += length
        if not ahead:
            break
        fd, offset, length = ahead.popleft()
        for at in range(offset, offset + length, 1 << 20):
            total += len(os.pread(fd, min(1 << 20, offset + length - at), at))
        os.close(fd)
        asked -= length
    ended = time.monotonic()
    print(json.dumps(dict(bytes=total, look_s=round(looked - began, 3), read_s=round(ended - looked, 3))))


if __name__ == "__main__":
    main()
