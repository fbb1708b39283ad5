"""Watchers: asked for news by the synchronous client, called back by the asynchronous one."""

from common import ASYNC, RUN, do, raises, scenario, sdk, shared, until

DIR = f"/home/user/watched-{RUN}"
Kind = sdk.FilesystemEventType


class Watched:
    """A directory that is watched, and what was told of it."""

    def __init__(self):
        self.events = []
        self.handle = None

    @classmethod
    async def start(cls, files, path, **options):
        watched = cls()
        if ASYNC:
            options["on_event"] = watched.events.append
        watched.handle = await do(files.watch_dir(path, **options))
        return watched

    async def told(self, kind, name):
        """Waits until an event of that kind and name was told, and returns it."""

        async def found():
            if not ASYNC:
                self.events.extend(self.handle.get_new_events())
            return [e for e in self.events if (e.type, e.name) == (kind, name)]

        return (await until(found, f"{kind} of {name}"))[0]


@scenario()
async def changes_in_a_directory_are_told():
    sandbox = await shared()
    files = sandbox.files
    await do(files.make_dir(f"{DIR}/flat"))
    watched = await Watched.start(files, f"{DIR}/flat")
    await do(files.write(f"{DIR}/flat/a", "1"))
    await watched.told(Kind.CREATE, "a")
    await watched.told(Kind.WRITE, "a")
    # By whomever they are made.
    await do(sandbox.commands.run(f"chmod 600 {DIR}/flat/a; echo 2 > {DIR}/flat/b"))
    await watched.told(Kind.CHMOD, "a")
    await watched.told(Kind.CREATE, "b")
    await do(files.rename(f"{DIR}/flat/a", f"{DIR}/flat/c"))
    await watched.told(Kind.RENAME, "a")
    await do(files.remove(f"{DIR}/flat/c"))
    await watched.told(Kind.REMOVE, "c")
    await do(watched.handle.stop())


@scenario()
async def a_stopped_watcher_tells_nothing():
    files = (await shared()).files
    await do(files.make_dir(f"{DIR}/stopped"))
    watched = await Watched.start(files, f"{DIR}/stopped")
    await do(files.write(f"{DIR}/stopped/a", "1"))
    await watched.told(Kind.CREATE, "a")
    await do(watched.handle.stop())
    if ASYNC:
        other = await Watched.start(files, f"{DIR}/stopped")
        before = len(watched.events)
        await do(files.write(f"{DIR}/stopped/b", "1"))
        await other.told(Kind.CREATE, "b")
        assert len(watched.events) == before, watched.events
        await do(other.handle.stop())
    else:
        await raises(sdk.SandboxException, watched.handle.get_new_events)


@scenario()
async def changes_below_are_told_where_they_are_asked_for():
    files = (await shared()).files
    await do(files.make_dir(f"{DIR}/tree/there"))
    deep = await Watched.start(files, f"{DIR}/tree", recursive=True)
    flat = await Watched.start(files, f"{DIR}/tree")
    await do(files.write(f"{DIR}/tree/there/a", "1"))
    await deep.told(Kind.CREATE, "there/a")
    # A directory made later is watched too.
    await do(files.make_dir(f"{DIR}/tree/later"))
    await deep.told(Kind.CREATE, "later")
    await do(files.write(f"{DIR}/tree/later/b", "1"))
    await deep.told(Kind.WRITE, "later/b")
    await flat.told(Kind.CREATE, "later")
    names = {event.name for event in flat.events}
    assert not any("/" in name for name in names), names
    await do(deep.handle.stop())
    await do(flat.handle.stop())


@scenario("entry_events")
async def what_the_server_does_not_promise_is_not_asked_of_it():
    # What is said of a file comes with events from version 0.6.3 of a sandbox's side on.
    files = (await shared()).files
    await do(files.make_dir(f"{DIR}/entries"))

    def watch():
        options = {"on_event": print} if ASYNC else {}
        return files.watch_dir(f"{DIR}/entries", include_entry=True, **options)

    await raises(sdk.TemplateException, watch)


@scenario()
async def nothing_is_watched_that_is_no_directory():
    files = (await shared()).files
    await do(files.write(f"{DIR}/file", "1"))

    def watch(path):
        options = {"on_event": print} if ASYNC else {}
        return files.watch_dir(path, **options)

    await raises(sdk.NotFoundException, lambda: watch(f"{DIR}/missing"))
    await raises(sdk.InvalidArgumentException, lambda: watch(f"{DIR}/file"))
