"""A computation that ends, with everything around it that a snapshot must not break, and says what came out.

Begun: files open, one of them unlinked; a pipe to a child; a child that sleeps; an inotify watch; a listening TCP
socket and a connection to it; a compiler at work. Then it counts, for a while. At the end each of these must do what
it would have done.
"""

import ctypes
import hashlib
import os
import socket
import struct
import subprocess
import sys
import tempfile

ROUNDS = int(sys.argv[2])
# As many as keep a compiler busy for some seconds, in a machine that is emulated.
FUNCTIONS = 100
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

kept = open("kept", "w+b")
kept.write(b"first half, ")
unnamed = tempfile.TemporaryFile(dir=".")
unnamed.write(b"of a file without a name")
echo = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
sleeper = subprocess.Popen(["sleep", "20"])
os.mkdir("watched")
watch = libc.inotify_init1(0o2000000)
assert libc.inotify_add_watch(watch, b"watched", 0x100) > 0  # IN_CREATE
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
near.sendall(b"sent before, ")
with open("program.c", "w") as source:
    source.write("#include <stdio.h>\n")
    for n in range(FUNCTIONS):
        source.write(f"static int f{n}(int x) {{ for (int i = 0; i < {n}; i++) x = x * 31 + i; return x; }}\n")
    source.write("int main(void) { unsigned s = 0;\n")
    for n in range(FUNCTIONS):
        source.write(f"s += (unsigned)f{n}({n});\n")
    source.write('printf("%u\\n", s); return 0; }\n')
compiler = subprocess.Popen(["cc", "-O1", "-fwrapv", "-o", "program", "program.c"])
print("begun", flush=True)

digest = b"floe"
for _ in range(ROUNDS):
    for _ in range(1000):
        digest = hashlib.sha256(digest).digest()
said = [digest.hex()]

kept.write(b"second half")
kept.seek(0)
said.append(kept.read().decode())
unnamed.seek(0)
said.append(unnamed.read().decode())
said.append(echo.communicate(b"through a pipe")[0].decode())
said.append(f"slept {sleeper.wait()}")
open("watched/new", "w").close()
event = os.read(watch, 4096)
length = struct.unpack("iIII", event[:16])[3]
said.append("watched " + event[16 : 16 + length].rstrip(b"\0").decode())
near.sendall(b"sent after")
near.shutdown(socket.SHUT_WR)
received = b""
while piece := far.recv(100):
    received += piece
said.append(received.decode())
another = socket.create_connection(listener.getsockname())
listener.accept()[0].sendall(b"listens")
said.append(another.recv(100).decode())
assert compiler.wait() == 0
said.append(subprocess.run(["./program"], check=True, capture_output=True, text=True).stdout.strip())
print("result " + "; ".join(said), flush=True)
