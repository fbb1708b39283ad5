"""What the scenarios share: one form for both clients of a package, its features, and the runner.

A scenario is written once, as a coroutine. `do` passes on what the synchronous client returns and
awaits what the asynchronous one does. For the synchronous client nothing ever waits, and a scenario
is driven to its end without an event loop.

Environment: `FLOE_SDK` (the package's module), `FLOE_SDK_MODE` (`sync` or `async`), and what the
package itself reads. Standard output has one JSON object a line:

    {"sandbox": ID}                              a sandbox was made
    {"ran": NAME}                                a scenario passed
    {"lacks": FEATURE, "scenario": NAME}         this version of the package has no such thing
    {"failed": NAME, "trace": TEXT}              a scenario failed
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import time
import traceback
import uuid

sdk = importlib.import_module(os.environ["FLOE_SDK"])
ASYNC = os.environ["FLOE_SDK_MODE"] == "async"
Sandbox = sdk.AsyncSandbox if ASYNC else sdk.Sandbox

# Marks every sandbox of this run.
RUN = uuid.uuid4().hex

# A time that nothing here needs; more is a hang.
LIMIT_S = 60


def say(**line):
    """Tells the test something."""
    print(json.dumps(line), flush=True)


async def do(value):
    """What the call returned, whichever client made it."""
    return await value if inspect.isawaitable(value) else value


async def sleep(seconds):
    if ASYNC:
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


async def until(check, what):
    """Waits until `await check()` is true, and returns what it said."""
    end = time.monotonic() + LIMIT_S
    while True:
        found = await check()
        if found:
            return found
        assert time.monotonic() < end, f"waited in vain: {what}"
        await sleep(0.05)


async def raises(kind, call):
    """The exception of type `kind` that `call` ends in."""
    try:
        value = await do(call())
    except kind as error:
        return error
    raise AssertionError(f"no {kind} but {value!r}")


async def everything(paginator):
    """All items behind a paginator."""
    items = []
    while paginator.has_next:
        items.extend(await do(paginator.next_items()))
    return items


def parameters(function):
    return inspect.signature(function).parameters


def module(path):
    return importlib.import_module(f"{sdk.__name__}.sandbox_{'async' if ASYNC else 'sync'}.{path}")


def features():
    """What this version of the package has beyond the oldest one tested."""
    files = module("filesystem.filesystem").Filesystem
    commands = module("commands.command").Commands
    found = {
        "close_stdin": hasattr(commands, "close_stdin"),
        "entry_events": "include_entry" in parameters(files.watch_dir),
        "fork": hasattr(Sandbox, "fork"),
        "get_url": hasattr(Sandbox, "get_url"),
        "gzip": "gzip" in parameters(files.write),
        "idempotency_key": "idempotency_key" in parameters(Sandbox.create),
        "list_order": "order" in parameters(Sandbox.list),
        "octet_stream": "use_octet_stream" in parameters(files.write),
        "pause_result": "keep_memory" in parameters(Sandbox.pause),
        "snapshot_mode": "mode" in parameters(Sandbox.create_snapshot),
        "snapshot_names": "name" in parameters(Sandbox.create_snapshot),
        "stream_input": hasattr(commands, "stream_input"),
        "symlink_type": hasattr(sdk.FileType, "SYMLINK"),
    }
    return {name for name, there in found.items() if there}


FEATURES = features()
SCENARIOS = []


def scenario(*needs):
    """Registers a scenario; `needs` names the features without which it cannot be."""

    def register(function):
        name = f"{function.__module__}.{function.__name__}"
        SCENARIOS.append((name, needs, function))
        return function

    return register


async def create(template=None, timeout=600, **options):
    """A new sandbox, marked as one of this run."""
    metadata = {"run": RUN, **options.pop("metadata", {})}
    made = await do(Sandbox.create(template, timeout=timeout, metadata=metadata, **options))
    say(sandbox=made.sandbox_id)
    return made


@contextlib.asynccontextmanager
async def fresh(*arguments, **options):
    """A sandbox for one scenario, which may kill it itself."""
    made = await create(*arguments, **options)
    try:
        yield made
    finally:
        await do(made.kill())


_shared = []


async def shared():
    """The sandbox for scenarios that leave nothing behind but files of their own."""
    if not _shared:
        _shared.append(await create())
    return _shared[0]


async def listed(**query):
    """The sandboxes of this run that a list shows."""
    metadata = {"run": RUN, **query.pop("metadata", {})}
    return await everything(Sandbox.list(query=sdk.SandboxQuery(metadata=metadata, **query)))


class Running:
    """A command or terminal whose output is taken in while it runs."""

    def __init__(self):
        self.handle = None
        self.text = ""
        self._output = None

    @classmethod
    async def command(cls, sandbox, line, **options):
        """Starts a command in the background."""
        running = cls()
        if ASYNC:
            options["on_stdout"] = running.take
        running.handle = await do(sandbox.commands.run(line, background=True, **options))
        return running

    @classmethod
    async def attached(cls, sandbox, pid, **options):
        """Attaches to a command that runs."""
        running = cls()
        if ASYNC:
            options["on_stdout"] = running.take
        running.handle = await do(sandbox.commands.connect(pid, **options))
        return running

    @classmethod
    async def terminal(cls, sandbox, rows, cols, **options):
        """Starts a shell in a terminal."""
        running = cls()
        if ASYNC:
            options["on_data"] = running.take
        size = sdk.PtySize(rows=rows, cols=cols)
        running.handle = await do(sandbox.pty.create(size, **options))
        return running

    @property
    def pid(self):
        return self.handle.pid

    def take(self, output):
        if isinstance(output, (bytes, bytearray)):
            output = bytes(output).decode(errors="replace")
        self.text += output

    async def shows(self, text):
        """Waits until its standard output, or its terminal, has shown `text`."""
        if ASYNC:

            async def shown():
                return text in self.text

            await until(shown, f"{text!r} in the output {self.text!r}")
            return
        # The synchronous client takes output in only while it is asked for it.
        if self._output is None:
            self._output = iter(self.handle)
        while text not in self.text:
            try:
                stdout, _, terminal = next(self._output)
            except StopIteration:
                raise AssertionError(f"no {text!r} in the output {self.text!r}") from None
            self.take(stdout or terminal or "")

    async def wait(self):
        """Its result once it has ended."""
        return await do(self.handle.wait())


def drive(coroutine):
    """Runs a scenario to its end."""
    if ASYNC:
        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the synchronous client has to be waited for")


async def _run_all():
    passed = True
    for name, needs, function in SCENARIOS:
        missing = [need for need in needs if need not in FEATURES]
        if missing:
            say(lacks=missing[0], scenario=name)
            continue
        try:
            await function()
        except Exception:
            passed = False
            say(failed=name, trace=traceback.format_exc())
        else:
            say(ran=name)
    for sandbox in _shared:
        await do(sandbox.kill())
    left = [info.sandbox_id for info in await listed()]
    assert not left, f"sandboxes are left of this run: {left}"
    return passed


def main(files):
    """Runs the scenarios of these files; false if one failed."""
    for file in files:
        importlib.import_module(file)
    return drive(_run_all())
