"""The snapshot examples of the package's users, with the asynchronous client."""

import asyncio

from ucloud_sandbox import AsyncSandbox


async def main():
    # Create a sandbox and take a snapshot of it.
    sandbox = await AsyncSandbox.create()
    await sandbox.files.write("/home/user/state.txt", "before")
    snapshot = await sandbox.create_snapshot()
    print(f"Snapshot ID: {snapshot.snapshot_id}")

    # Take a snapshot by the id of a sandbox.
    sandbox_id = sandbox.sandbox_id
    second = await AsyncSandbox.create_snapshot(sandbox_id)
    assert second.snapshot_id != snapshot.snapshot_id

    # Create a sandbox from a snapshot.
    await sandbox.files.write("/home/user/state.txt", "after")
    restored = await AsyncSandbox.create(snapshot.snapshot_id)
    assert restored.sandbox_id != sandbox_id
    assert await restored.files.read("/home/user/state.txt") == "before"
    assert await sandbox.files.read("/home/user/state.txt") == "after"

    # List all snapshots.
    snapshots = []
    paginator = AsyncSandbox.list_snapshots()
    while paginator.has_next:
        snapshots.extend(await paginator.next_items())
    found = {item.snapshot_id for item in snapshots}
    assert {snapshot.snapshot_id, second.snapshot_id} <= found

    # List the snapshots of one sandbox.
    paginator = AsyncSandbox.list_snapshots(sandbox_id=sandbox_id)
    items = []
    while paginator.has_next:
        items.extend(await paginator.next_items())
    assert [item.snapshot_id for item in items] == [second.snapshot_id, snapshot.snapshot_id]

    # Delete a snapshot.
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is False
    assert await restored.files.read("/home/user/state.txt") == "before"

    # Pause a sandbox, and connect to it again.
    await sandbox.pause()
    same = await AsyncSandbox.connect(sandbox_id)
    assert same.sandbox_id == sandbox_id
    assert await same.files.read("/home/user/state.txt") == "after"
    result = await same.commands.run("echo hello")
    assert result.stdout == "hello\n"

    assert await AsyncSandbox.delete_snapshot(second.snapshot_id) is True
    for made in (same, restored):
        assert await made.kill() is True


asyncio.run(main())
