#!/usr/bin/env python3
"""Snapshots while programs in a machine work: causal.py FLOE MACHINE DIR COUNT TAKE...

In the machine the program `causal` works in DIR. COUNT times the command TAKE takes a snapshot and prints its id;
before and after, the program says how far it is. Then each snapshot is mounted. What returned before the snapshot
was asked for is in it, what began after it was there is not, and nothing is in it without all that happened before.
"""

import os
import struct
import subprocess
import sys
import tempfile

WRITERS = ("ring", "alone-0", "alone-1")


class Load:
    """The program in the machine."""

    def __init__(self, floe, machine, directory):
        self.process = subprocess.Popen(
            [floe, "sandbox", "exec", machine, "--user", "root", "-i", "--", "/workspace/causal", directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def progress(self):
        """How many calls each writer has begun, and how many have returned."""
        self.process.stdin.write(b"?")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        numbers = [int(number) for number in line.split()]
        if len(numbers) != 2 * len(WRITERS):
            raise SystemExit(f"the program in the machine has ended: {line!r}")
        return numbers[0::2], numbers[1::2]

    def stop(self):
        self.process.stdin.close()
        status = self.process.wait(timeout=60)
        if status != 0:
            raise SystemExit(f"the program in the machine ended with {status}")


def records(directory):
    """How many there are in all files, none of which may be missing."""
    found = []
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as file:
            contents = file.read()
        if len(contents) % 8:
            raise SystemExit(f"half a record in {directory}/{name}")
        found += struct.unpack(f"<{len(contents) // 8}Q", contents)
    for expected, number in enumerate(sorted(found)):
        if number != expected:
            raise SystemExit(f"a gap in {directory}: {number} where {expected} should be")
    return len(found)


def checked(mount, at_least, at_most):
    """Looks at a snapshot. Returns how many records there are."""
    counts = [records(os.path.join(mount, writer)) for writer in WRITERS]
    for writer, count, least, most in zip(WRITERS, counts, at_least, at_most):
        if not least <= count <= most:
            raise SystemExit(f"{writer}: {count} records are not between {least} and {most}")
    turns = [name for name in os.listdir(mount) if name.startswith("turn-")]
    if turns not in ([f"turn-{counts[0]}"], [f"turn-{counts[0] - 1}"]):
        raise SystemExit(f"of turn {counts[0]} there is {turns}")
    return sum(counts)


def main(floe, machine, directory, count, *take):
    load = Load(floe, machine, directory)
    while 0 in load.progress()[1]:
        pass
    cuts = []
    for _ in range(int(count)):
        at_least = load.progress()[1]
        taken = subprocess.run(take, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        cuts.append((taken, at_least, load.progress()[0]))
    load.stop()
    shown = os.path.relpath(directory, "/workspace") if directory.startswith("/workspace/") else directory[1:]
    last = 0
    with tempfile.TemporaryDirectory() as mount:
        for taken, at_least, at_most in cuts:
            subprocess.run([floe, "mount", "-q", taken, mount], check=True, stdout=subprocess.DEVNULL)
            try:
                found = checked(os.path.join(mount, shown), at_least, at_most)
            finally:
                subprocess.run([floe, "umount", "-q", taken], check=True, stdout=subprocess.DEVNULL)
            if found < last:
                raise SystemExit(f"{taken} has {found} records, one before it has {last}")
            last = found
    print(f"{len(cuts)} snapshots are causal, with up to {last} records")


main(*sys.argv[1:])
