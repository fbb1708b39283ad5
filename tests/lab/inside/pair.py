"""Counts in memory and in files in step, for ever, and says BROKEN when they do not agree.

Each step reads what the last one left, past the kernel's cache where that is possible, compares it with what is
remembered, and writes the next number: with write, by rename, through a mapping, into SQLite, into a file without a
name, through a pipe to a child. So a machine that goes on elsewhere notices at once when its files are not of the
moment that its memory is of.
"""

import mmap
import os
import socket
import sqlite3
import sys
import time

os.chdir(sys.argv[1])


def direct(name):
    """A file's first block, from the file system and not from the cache."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 4096)
        os.preadv(fd, [buffer], 0)
        return int(bytes(buffer[:20]))
    finally:
        os.close(fd)


def broken(what, found, wanted):
    print(f"BROKEN {what}: {found} instead of {wanted}", flush=True)
    sys.exit(1)


written = os.open("written", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(written, b"%-4096d" % 0, 0)
with open("renamed", "wb") as file:
    file.write(b"%-4096d" % 0)
mapped_fd = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(mapped_fd, 4096)
mapped = mmap.mmap(mapped_fd, 4096)
mapped[:20] = b"%-20d" % 0
nameless = os.open("nameless", os.O_RDWR | os.O_CREAT, 0o600)
os.unlink("nameless")
os.pwrite(nameless, b"%-4096d" % 0, 0)
database = sqlite3.connect("database", isolation_level=None)
database.execute("CREATE TABLE t (n INTEGER)")
database.execute("INSERT INTO t VALUES (0)")
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0pair")
listener.listen()
# A child that answers each line with the same line.
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    while True:
        os.write(up[1], os.read(down[0], 100))

step = 0
while True:
    for what, found in [
        ("written", direct("written")),
        ("renamed", direct("renamed")),
        ("mapped", int(bytes(mapped[:20]))),
        ("nameless", int(os.pread(nameless, 20, 0))),
        ("database", database.execute("SELECT n FROM t").fetchone()[0]),
    ]:
        if found != step:
            broken(what, found, step)
    step += 1
    os.pwrite(written, b"%-4096d" % step, 0)
    with open("new", "wb") as file:
        file.write(b"%-4096d" % step)
    os.rename("new", "renamed")
    mapped[:20] = b"%-20d" % step
    os.pwrite(nameless, b"%-4096d" % step, 0)
    database.execute("UPDATE t SET n = ?", (step,))
    os.write(down[1], b"%d\n" % step)
    answer = os.read(up[0], 100)
    if answer != b"%d\n" % step:
        broken("pipe", answer, step)
    caller = socket.socket(socket.AF_UNIX)
    caller.connect("\0pair")
    caller.close()
    listener.accept()[0].close()
    print(f"step {step}", flush=True)
    time.sleep(0.02)
