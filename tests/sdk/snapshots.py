"""Snapshots and forks: what is in them, and what they do not disturb."""

from common import (
    RUN,
    Running,
    Sandbox,
    create,
    do,
    everything,
    fresh,
    raises,
    say,
    scenario,
    sdk,
    until,
)

FILE = "/home/user/state"


@scenario()
async def a_snapshot_is_the_state_it_was_taken_in():
    async with fresh() as source:
        await do(source.files.write(FILE, "one"))
        await do(source.commands.run("echo tool > /usr/local/bin/tool", user="root"))
        first = await do(source.create_snapshot())
        await do(source.files.write(FILE, "two"))
        second = await do(Sandbox.create_snapshot(source.sandbox_id))
        assert first.snapshot_id != second.snapshot_id
        await do(source.files.remove(FILE))
        async with fresh(first.snapshot_id) as old, fresh(second.snapshot_id) as new:
            assert await do(old.files.read(FILE)) == "one"
            assert await do(new.files.read(FILE)) == "two"
            assert await do(old.files.read("/usr/local/bin/tool")) == "tool\n"
            await do(old.files.write(FILE, "changed"))
            assert await do(new.files.read(FILE)) == "two"
            assert not await do(source.files.exists(FILE))
        async with fresh(first.snapshot_id) as again:
            assert await do(again.files.read(FILE)) == "one"


@scenario()
async def commands_go_on_through_a_snapshot():
    async with fresh() as sandbox:
        # Numbers without a gap, from before the first snapshot until after the last.
        line = "i=0; until [ -e stop ]; do echo $i; i=$((i+1)); sleep 0.002; done; echo end $i"
        running = await Running.command(sandbox, line)
        await running.shows("\n")
        taken = [await do(sandbox.create_snapshot()) for _ in range(10)]
        await do(sandbox.files.write("stop", ""))
        result = await running.wait()
        lines = result.stdout.split("\n")
        count = int(lines[-2].removeprefix("end "))
        assert lines == [*map(str, range(count)), f"end {count}", ""], result.stdout[-200:]
        assert len({snapshot.snapshot_id for snapshot in taken}) == 10
        async with fresh(taken[5].snapshot_id) as restored:
            assert not await do(restored.files.exists("stop"))
            assert await do(restored.commands.list()) == []


@scenario()
async def a_snapshot_outlives_its_sandbox():
    source = await create()
    await do(source.files.write(FILE, "kept"))
    snapshot = await do(source.create_snapshot())
    assert await do(source.kill()) is True
    async with fresh(snapshot.snapshot_id) as restored:
        assert await do(restored.files.read(FILE)) == "kept"
    found = await everything(Sandbox.list_snapshots(sandbox_id=source.sandbox_id))
    assert [item.snapshot_id for item in found] == [snapshot.snapshot_id]


@scenario()
async def a_snapshot_in_use_is_deleted():
    async with fresh() as source:
        await do(source.files.write(FILE, "used"))
        snapshot = await do(source.create_snapshot())
        async with fresh(snapshot.snapshot_id) as user:
            assert await do(Sandbox.delete_snapshot(snapshot.snapshot_id)) is True
            assert await do(user.files.read(FILE)) == "used"
            await do(user.commands.run("test $(cat state) = used"))
            assert await do(source.files.read(FILE)) == "used"
            assert await do(Sandbox.delete_snapshot(snapshot.snapshot_id)) is False
            found = await everything(source.list_snapshots())
            assert found == [], found
            await raises(sdk.SandboxException, lambda: Sandbox.create(snapshot.snapshot_id))
            later = await do(user.create_snapshot())
        async with fresh(later.snapshot_id) as restored:
            assert await do(restored.files.read(FILE)) == "used"


@scenario()
async def a_sandbox_lists_its_own_snapshots():
    async with fresh() as one, fresh() as other:
        mine = [(await do(one.create_snapshot())).snapshot_id for _ in range(3)]
        theirs = await do(other.create_snapshot())
        found = [item.snapshot_id for item in await everything(one.list_snapshots())]
        assert found == mine[::-1], (found, mine)
        every = {item.snapshot_id for item in await everything(Sandbox.list_snapshots())}
        assert {*mine, theirs.snapshot_id} <= every


@scenario("snapshot_names")
async def a_name_moves_to_the_newest_snapshot():
    name = f"named-{RUN}"
    async with fresh() as source:
        await do(source.files.write(FILE, "one"))
        first = await do(source.create_snapshot(name=name))
        assert any(name in known for known in first.names), first
        async with fresh(name) as restored:
            assert await do(restored.files.read(FILE)) == "one"
        await do(source.files.write(FILE, "two"))
        second = await do(source.create_snapshot(name=name))
        async with fresh(name) as restored:
            assert await do(restored.files.read(FILE)) == "two"
        found = await everything(Sandbox.list_snapshots(name=name))
        assert second.snapshot_id in {item.snapshot_id for item in found}, found
        await do(source.create_snapshot(name=f"{name}:v1"))
        async with fresh(f"{name}:v1") as restored:
            assert await do(restored.files.read(FILE)) == "two"


@scenario("snapshot_mode")
async def a_snapshot_of_files_alone_is_one():
    async with fresh() as source:
        await do(source.files.write(FILE, "files"))
        snapshot = await do(source.create_snapshot(mode="filesystem"))
        async with fresh(snapshot.snapshot_id) as restored:
            assert await do(restored.files.read(FILE)) == "files"


@scenario("fork")
async def a_fork_is_a_sandbox_of_its_own():
    async with fresh() as source:
        await do(source.files.write(FILE, "forked"))
        forks = await do(source.fork(count=3, timeout=600))
        for fork in forks:
            say(sandbox=fork.sandbox_id)
        try:
            ids = {source.sandbox_id, *(fork.sandbox_id for fork in forks)}
            assert len(ids) == 4, ids
            for number, fork in enumerate(forks):
                assert await do(fork.files.read(FILE)) == "forked"
                await do(fork.files.write(FILE, f"{number}"))
            await do(source.files.write(FILE, "source"))
            for number, fork in enumerate(forks):
                result = await do(fork.commands.run("cat state"))
                assert result.stdout == f"{number}", result
        finally:
            for fork in forks:
                await do(fork.kill())


@scenario()
async def a_snapshot_of_a_sandbox_of_a_snapshot():
    async with fresh() as first:
        await do(first.files.write(FILE, "0"))
        sandbox, ends = first, []
        try:
            for number in range(1, 6):
                snapshot = await do(sandbox.create_snapshot())
                sandbox = await create(snapshot.snapshot_id)
                ends.append(sandbox)
                assert await do(sandbox.files.read(FILE)) == str(number - 1)
                await do(sandbox.files.write(FILE, str(number)))

            async def runs():
                return await do(sandbox.is_running())

            await until(runs, "the last one to run")
        finally:
            for sandbox in ends:
                await do(sandbox.kill())
