"""Lists in pages, while what they list changes: nothing is missed and nothing comes twice."""

from common import Sandbox, do, everything, fresh, raises, scenario, sdk

COUNT = 250


@scenario()
async def pages_of_snapshots_are_whole_while_the_list_changes():
    async with fresh() as sandbox:
        made = [(await do(sandbox.create_snapshot())).snapshot_id for _ in range(COUNT)]
        newest_first = made[::-1]
        assert len(set(made)) == COUNT

        # As it is, by pages of any size.
        for limit in (None, 100, 37):
            pages = sandbox.list_snapshots(limit=limit)
            found = [item.snapshot_id for item in await everything(pages)]
            assert found == newest_first, limit

        # While others are made and deleted: before the place of the reader, at it, and behind it.
        gone, added, found = set(), [], []
        pages = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, limit=20)
        while pages.has_next:
            items = [item.snapshot_id for item in await do(pages.next_items())]
            assert 0 < len(items) <= 20
            found.extend(items)
            added.append((await do(sandbox.create_snapshot())).snapshot_id)
            last = newest_first.index(items[-1])
            for victim in (last - 5, last, last + 5):
                if 0 <= victim < COUNT and newest_first[victim] not in gone:
                    assert await do(Sandbox.delete_snapshot(newest_first[victim])) is True
                    gone.add(newest_first[victim])
        assert len(gone) > 20
        assert len(found) == len(set(found)), "a snapshot came twice"
        assert not set(found) & set(added), "what was made later is not behind"
        stayed = [snapshot for snapshot in newest_first if snapshot not in gone]
        assert [snapshot for snapshot in found if snapshot not in gone] == stayed

        # Among those of all other sandboxes.
        every = [item.snapshot_id for item in await everything(Sandbox.list_snapshots(limit=50))]
        assert len(every) == len(set(every))
        ours = set(stayed) | set(added)
        assert [item for item in every if item in ours] == added[::-1] + stayed


@scenario()
async def a_list_goes_on_from_a_token():
    async with fresh() as sandbox:
        made = [(await do(sandbox.create_snapshot())).snapshot_id for _ in range(5)]
        pages = sandbox.list_snapshots(limit=2)
        first = await do(pages.next_items())
        assert pages.has_next and pages.next_token
        rest = sandbox.list_snapshots(limit=2, next_token=pages.next_token)
        found = [item.snapshot_id for item in [*first, *await everything(rest)]]
        assert found == made[::-1]
        for wrong in ("nonsense", "AAAA", pages.next_token[:-3]):
            await raises(
                sdk.SandboxException,
                lambda: sandbox.list_snapshots(next_token=wrong).next_items(),
            )


@scenario()
async def a_sandbox_without_snapshots_lists_none():
    async with fresh() as sandbox:
        pages = sandbox.list_snapshots()
        assert await do(pages.next_items()) == []
        assert not pages.has_next
