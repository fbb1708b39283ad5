#!/usr/bin/env python3
"""A session in a terminal: terminal.py COMMAND...

The command is to run bash in a terminal of its own. What is typed reaches it, Ctrl-C ends what runs there and
nothing else, a change of size is told, and after the end the terminal here is as it was.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

WAIT = 90


class Session:
    """A command on a terminal of this program's."""

    def __init__(self, command, rows, columns):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for stream in range(3):
                os.dup2(self.slave, stream)
            os.environ.update(TERM="xterm", PS1="> ")
            os.execvp(command[0], command)

    def resize(self, rows, columns):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def expect(self, pattern):
        """Waits for it among what has come since the last time, and returns its groups."""
        until = time.monotonic() + WAIT
        while True:
            found = re.search(pattern, self.text)
            if found:
                self.text = self.text[found.end():]
                return found.groups()
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise SystemExit(f"{pattern!r} did not come, but {self.text!r}")
            self.text += os.read(self.master, 65536).decode(errors="replace")

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def status(self):
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        raise SystemExit("the session does not end")


def is_equal(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found!r} is not {wanted!r}")


def session(command):
    shell = Session(command, 30, 101)
    # What is typed comes back as it is typed; what the shell makes of it looks different.
    shell.type("stty -echo; PS1=; echo rea''dy; tty\r")
    (terminal,) = shell.expect(r"ready\r\n(/dev/pts/\d+)\r\n")
    is_equal(shell.is_raw(), True, "keys go to the guest as they are")
    shell.type("test -t 0 && test -t 1 && test -t 2 && echo all of $(stty size)\r")
    shell.expect(r"all of 30 101\r\n")
    # Ctrl-C is for what runs in the terminal, not for the shell and not for the client.
    shell.type("sh -c 'echo sle''eps; exec sleep 1000'\r")
    shell.expect("sleeps\r\n")
    shell.type("\x03")
    shell.type("echo \"ended: $?\"\r")
    shell.expect("ended: 130\r\n")
    # So is Ctrl-Z, which needs jobs.
    shell.type("sh -c 'echo sle''eps; exec sleep 1000'\r")
    shell.expect("sleeps\r\n")
    shell.type("\x1a")
    shell.type("echo \"stopped: $?\"\r")
    shell.expect("stopped: 148\r\n")
    shell.type("fg\r")
    shell.expect("exec sleep 1000'\r\n")
    shell.type("\x03")
    shell.type("echo \"ended again: $?\"\r")
    shell.expect("ended again: 130\r\n")
    # A size that changes while a program runs.
    shell.type("sh -c 'trap \"stty size; exit 3\" WINCH; echo wa''its; while :; do sleep 0.05; done'; "
               "echo \"resized: $?\"\r")
    shell.expect("waits\r\n")
    shell.resize(41, 77)
    shell.expect("41 77\r\nresized: 3\r\n")
    # Many lines, none of them lost.
    shell.type("seq 1 3000 | sed 's/^/line /'; echo al''l\r")
    shell.expect("".join(f"line {n}\r\n" for n in range(1, 3001)) + "all\r\n")
    shell.type("exit 7\r")
    is_equal(shell.status(), 7, "the exit code of the session")
    is_equal(termios.tcgetattr(shell.slave), shell.before, "the terminal afterwards")
    return terminal


def end_of_input(command):
    shell = Session(command, 24, 80)
    shell.type("echo rea''dy\r")
    shell.expect("ready\r\n")
    shell.type("\x04")
    is_equal(shell.status(), 0, "the exit code after Ctrl-D")


print("a session on", session(sys.argv[1:]))
end_of_input(sys.argv[1:])
