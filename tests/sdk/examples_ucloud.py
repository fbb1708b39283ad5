"""The snapshot examples of the package's users, as they write them."""

from ucloud_sandbox import Sandbox

# Create a sandbox and take a snapshot of it.
sandbox = Sandbox.create()
sandbox.files.write("/home/user/state.txt", "before")
snapshot = sandbox.create_snapshot()
print(f"Snapshot ID: {snapshot.snapshot_id}")

# Take a snapshot by the id of a sandbox.
sandbox_id = sandbox.sandbox_id
second = Sandbox.create_snapshot(sandbox_id)
assert second.snapshot_id != snapshot.snapshot_id

# Create a sandbox from a snapshot.
sandbox.files.write("/home/user/state.txt", "after")
restored = Sandbox.create(snapshot.snapshot_id)
assert restored.sandbox_id != sandbox_id
assert restored.files.read("/home/user/state.txt") == "before"
assert sandbox.files.read("/home/user/state.txt") == "after"

# List all snapshots.
snapshots = []
paginator = Sandbox.list_snapshots()
while paginator.has_next:
    snapshots.extend(paginator.next_items())
found = {item.snapshot_id for item in snapshots}
assert {snapshot.snapshot_id, second.snapshot_id} <= found

# List the snapshots of one sandbox.
paginator = Sandbox.list_snapshots(sandbox_id=sandbox_id)
items = []
while paginator.has_next:
    items.extend(paginator.next_items())
assert [item.snapshot_id for item in items] == [second.snapshot_id, snapshot.snapshot_id]

# Delete a snapshot.
assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
assert restored.files.read("/home/user/state.txt") == "before"

# Pause a sandbox, and connect to it again.
sandbox.pause()
same = Sandbox.connect(sandbox_id)
assert same.sandbox_id == sandbox_id
assert same.files.read("/home/user/state.txt") == "after"
result = same.commands.run("echo hello")
assert result.stdout == "hello\n"

assert Sandbox.delete_snapshot(second.snapshot_id) is True
for made in (same, restored):
    assert made.kill() is True
