#!/usr/bin/env python3
"""Files of a machine through the HTTP API: files.py MACHINE KEY."""

import json
import os
import sys
import urllib.parse
import urllib.request

API = "http://127.0.0.1:8090"
AGENT_PORT = "49983"


def call(method, path, headers, body=None):
    request = urllib.request.Request(API + path, data=body, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read()


def main(machine, key):
    headers = {"X-API-KEY": key, "Content-Type": "application/json"}
    body = json.dumps({"timeout": 3600}).encode()
    connected = json.loads(call("POST", f"/sandboxes/{machine}/connect", headers, body))
    headers = {
        "E2b-Sandbox-Id": machine,
        "E2b-Sandbox-Port": AGENT_PORT,
        "X-Access-Token": connected["envdAccessToken"],
        "Content-Type": "application/octet-stream",
    }

    def file(path):
        return "/files?" + urllib.parse.urlencode({"path": path, "username": "root"})

    large = os.urandom(5_000_001)
    for path, contents in (
        ("/workspace/from-api", b"from the host\n"),
        ("/workspace/new/directory/large", large),
        ("/root/in-the-root", b""),
    ):
        call("POST", file(path), headers, contents)
        read = call("GET", file(path), headers)
        if read != contents:
            raise SystemExit(f"{path}: {len(read)} bytes came back of {len(contents)}, or others")
        print(path, len(contents), "bytes")


main(*sys.argv[1:])
