"""The life of a sandbox: pause and resume, time, what is said of it, its end."""

import datetime
import http.client
import os
import urllib.parse
import uuid

from common import (
    RUN,
    Running,
    Sandbox,
    create,
    do,
    everything,
    fresh,
    listed,
    raises,
    scenario,
    sdk,
    until,
)

# A loop that counts in a file, and so tells whether processes run.
COUNTER = "i=0; while true; do i=$((i+1)); echo $i > count.new; mv count.new count; sleep 0.01; done"


async def state(sandbox_id):
    return (await do(Sandbox.get_info(sandbox_id))).state


async def is_gone(sandbox_id):
    try:
        await do(Sandbox.get_info(sandbox_id))
    except sdk.NotFoundException:
        return True
    return False


async def count(sandbox):
    if not await do(sandbox.files.exists("count")):
        return 0
    return int(await do(sandbox.files.read("count")))


async def counts(sandbox, above):
    async def more():
        return await count(sandbox) > above

    await until(more, "the counter to go on")


@scenario()
async def a_paused_sandbox_goes_on_where_it_was():
    async with fresh() as sandbox:
        running = await Running.command(sandbox, COUNTER, timeout=0)
        await counts(sandbox, 3)
        await do(sandbox.pause())
        assert await do(sandbox.is_running()) is False
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.PAUSED
        same = await do(Sandbox.connect(sandbox.sandbox_id, timeout=600))
        assert same.sandbox_id == sandbox.sandbox_id
        assert await do(same.is_running()) is True
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.RUNNING
        before = await count(same)
        assert before > 3, "it began anew"
        await counts(same, before)
        pids = {process.pid for process in await do(same.commands.list())}
        assert running.pid in pids
        # By the object as well, and where it runs already.
        await do(sandbox.pause())
        await do(sandbox.connect(timeout=600))
        await do(sandbox.connect(timeout=600))
        await counts(sandbox, await count(sandbox))


@scenario()
async def a_sandbox_that_is_connected_to_is_used_like_any_other():
    async with fresh() as sandbox:
        same = await do(Sandbox.connect(sandbox.sandbox_id))
        assert (await do(same.commands.run("echo out"))).stdout == "out\n"
        await do(same.files.write("dir/file", "1"))
        assert await do(same.files.read("dir/file")) == "1"
        assert [entry.name for entry in await do(same.files.list("dir"))] == ["file"]
        assert await do(sandbox.files.exists("dir/file"))


@scenario()
async def a_sandbox_is_paused_twice():
    async with fresh() as sandbox:
        await do(sandbox.pause())
        await do(sandbox.pause())
        await do(Sandbox.pause(sandbox.sandbox_id))
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.PAUSED


@scenario("pause_result")
async def whether_it_was_paused_already_is_said():
    async with fresh() as sandbox:
        assert await do(sandbox.pause()) is True
        assert await do(sandbox.pause()) is False


@scenario()
async def a_paused_sandbox_is_not_there_for_requests():
    async with fresh() as sandbox:
        await do(sandbox.pause())
        await raises(sdk.TimeoutException, lambda: sandbox.files.read("/etc/hostname"))
        await raises(sdk.TimeoutException, lambda: sandbox.commands.run("true"))
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.PAUSED


@scenario()
async def a_paused_sandbox_is_killed():
    sandbox = await create()
    await do(sandbox.pause())
    assert await do(sandbox.kill()) is True
    assert await is_gone(sandbox.sandbox_id)
    await raises(sdk.NotFoundException, lambda: Sandbox.connect(sandbox.sandbox_id))


@scenario()
async def a_request_resumes_where_that_was_asked_for():
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    async with fresh(lifecycle=lifecycle) as sandbox:
        await do(sandbox.files.write("here", "1"))
        await do(sandbox.pause())
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.PAUSED
        assert (await do(sandbox.commands.run("cat here"))).stdout == "1"
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.RUNNING
        await do(sandbox.pause())
        assert await do(sandbox.files.read("here")) == "1"
        assert await state(sandbox.sandbox_id) == sdk.SandboxState.RUNNING


@scenario()
async def a_sandbox_is_gone_when_its_time_is_over():
    sandbox = await create(timeout=1)

    async def gone():
        return await is_gone(sandbox.sandbox_id)

    await until(gone, "the end of its time")
    assert await do(sandbox.is_running()) is False
    assert await do(sandbox.kill()) is False


@scenario()
async def a_sandbox_is_paused_when_its_time_is_over_if_asked():
    async with fresh(timeout=2, lifecycle={"on_timeout": "pause"}) as sandbox:
        await do(sandbox.files.write("kept", "1"))

        async def paused():
            return await state(sandbox.sandbox_id) == sdk.SandboxState.PAUSED

        await until(paused, "the pause at the end of its time")
        same = await do(Sandbox.connect(sandbox.sandbox_id, timeout=600))
        assert await do(same.files.read("kept")) == "1"


@scenario()
async def its_time_is_made_longer_and_shorter():
    sandbox = await create(timeout=600)
    before = (await do(sandbox.get_info())).end_at
    await do(sandbox.set_timeout(3600))
    after = (await do(sandbox.get_info())).end_at
    assert after - before > datetime.timedelta(minutes=30), (before, after)
    # Connecting makes it only ever longer.
    await do(Sandbox.connect(sandbox.sandbox_id, timeout=60))
    assert (await do(sandbox.get_info())).end_at >= after
    await do(Sandbox.set_timeout(sandbox.sandbox_id, 1))

    async def gone():
        return await is_gone(sandbox.sandbox_id)

    await until(gone, "the end of its shorter time")


@scenario()
async def what_is_said_of_a_sandbox_is_true():
    async with fresh(metadata={"who": "höher & weiter = \"x\""}) as sandbox:
        info = await do(sandbox.get_info())
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.metadata == {"run": RUN, "who": "höher & weiter = \"x\""}, info
        assert info.state == sdk.SandboxState.RUNNING
        assert info.started_at < info.end_at
        assert info.end_at - info.started_at <= datetime.timedelta(seconds=601), info
        assert info.cpu_count >= 1 and info.memory_mb >= 1, info
        assert (await do(Sandbox.get_info(sandbox.sandbox_id))).sandbox_id == sandbox.sandbox_id


@scenario()
async def sandboxes_are_listed_by_what_they_are():
    mark = uuid.uuid4().hex
    async with fresh(metadata={"mark": mark, "n": "1"}) as one:
        async with fresh(metadata={"mark": mark, "n": "2 & = ü"}) as two:

            async def ids(**query):
                return [info.sandbox_id for info in await listed(**query)]

            ours = {"mark": mark}
            assert await ids(metadata=ours) == [two.sandbox_id, one.sandbox_id]
            assert await ids(metadata={**ours, "n": "2 & = ü"}) == [two.sandbox_id]
            assert await ids(metadata={**ours, "n": "3"}) == []
            await do(two.pause())
            paused, running = [sdk.SandboxState.PAUSED], [sdk.SandboxState.RUNNING]
            assert await ids(metadata=ours, state=paused) == [two.sandbox_id]
            assert await ids(metadata=ours, state=running) == [one.sandbox_id]
            assert set(await ids(metadata=ours, state=[*paused, *running])) == {
                one.sandbox_id,
                two.sandbox_id,
            }
            query = sdk.SandboxQuery(metadata=ours)
            pages = Sandbox.list(query=query, limit=1)
            first = await do(pages.next_items())
            assert len(first) == 1 and pages.has_next
            rest = await everything(pages)
            found = [info.sandbox_id for info in [*first, *rest]]
            assert found == [two.sandbox_id, one.sandbox_id], found


@scenario("list_order")
async def sandboxes_are_listed_oldest_first_if_asked():
    mark = uuid.uuid4().hex
    async with fresh(metadata={"mark": mark}) as one, fresh(metadata={"mark": mark}) as two:
        query = sdk.SandboxQuery(metadata={"mark": mark})
        for order, expected in (("asc", [one, two]), ("desc", [two, one])):
            infos = await everything(Sandbox.list(query=query, order=order, limit=1))
            found = [info.sandbox_id for info in infos]
            assert found == [sandbox.sandbox_id for sandbox in expected], order


@scenario()
async def a_sandbox_is_killed_once():
    sandbox = await create()
    assert await do(sandbox.is_running()) is True
    assert await do(sandbox.kill()) is True
    assert await do(sandbox.kill()) is False
    assert await do(Sandbox.kill(sandbox.sandbox_id)) is False
    assert await do(sandbox.is_running()) is False
    assert await is_gone(sandbox.sandbox_id)


def fetched(host, path="/", method="GET", body=None):
    """An answer by the name that the sandbox's port has; the address is that of the server."""
    prefix = "E2B" if sdk.__name__ == "e2b" else "UCLOUD_SANDBOX"
    url = urllib.parse.urlsplit(os.environ[f"{prefix}_API_URL"])
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
    try:
        connection.request(method, path, body=body, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@scenario()
async def a_port_of_a_sandbox_is_reached_by_its_name():
    async with fresh() as sandbox, fresh() as other:
        await do(sandbox.files.write("/home/user/www/page", "from inside"))
        running = await Running.command(
            sandbox,
            "cd www && exec python3 -u -m http.server 8123 --bind 127.0.0.1",
            timeout=0,
        )
        await running.shows("Serving HTTP")
        host = sandbox.get_host(8123)
        assert host.startswith(f"8123-{sandbox.sandbox_id}."), host
        assert fetched(host, "/page") == (200, b"from inside")
        assert fetched(host, "/missing")[0] == 404
        status, body = fetched(sandbox.get_host(8124))
        assert status == 502 and b"port is not open" in body, (status, body)
        status, body = fetched(other.get_host(8123))
        assert status == 502, (status, body)
        await do(running.handle.kill())
    status, body = fetched(host)
    assert status == 502 and b"was not found" in body, (status, body)


@scenario("get_url")
async def the_address_of_a_port_is_its_name_as_an_url():
    async with fresh() as sandbox:
        assert sandbox.get_url(80, "/x").endswith(f"://{sandbox.get_host(80)}/x")


@scenario()
async def what_a_sandbox_uses_is_measured():
    async with fresh() as sandbox:
        await do(sandbox.commands.run("head -c 1000000 /dev/urandom > some"))

        async def measured():
            return await do(sandbox.get_metrics())

        metrics = await until(measured, "the first metrics")
        last = metrics[-1]
        assert last.cpu_count >= 1 and last.cpu_used_pct >= 0, last
        assert last.mem_total > 0 and last.mem_used >= 0, last
        assert last.disk_total > 0 and last.disk_used >= 0, last


@scenario("idempotency_key")
async def a_key_makes_one_sandbox():
    key = f"once-{RUN}"
    one = await create(idempotency_key=key)
    try:
        two = await create(idempotency_key=key)
        assert one.sandbox_id == two.sandbox_id
        other = await create(idempotency_key=f"{key}-other")
        assert other.sandbox_id != one.sandbox_id
        await do(other.kill())
    finally:
        await do(one.kill())
