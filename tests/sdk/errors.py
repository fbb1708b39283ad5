"""What goes wrong is an exception of the package's own, and the right one."""

from common import Running, Sandbox, create, do, fresh, raises, scenario, sdk

UNKNOWN = "sandbox-that-never-was"


@scenario()
async def an_unknown_sandbox_is_not_found():
    missing = sdk.SandboxNotFoundException
    await raises(missing, lambda: Sandbox.connect(UNKNOWN))
    await raises(missing, lambda: Sandbox.get_info(UNKNOWN))
    await raises(missing, lambda: Sandbox.set_timeout(UNKNOWN, 60))
    await raises(missing, lambda: Sandbox.create_snapshot(UNKNOWN))
    await raises(missing, lambda: Sandbox.pause(UNKNOWN))
    assert await do(Sandbox.kill(UNKNOWN)) is False
    assert await do(Sandbox.delete_snapshot("0123456789abcdef")) is False
    assert await do(Sandbox.delete_snapshot("team/name:tag")) is False


@scenario("fork")
async def an_unknown_sandbox_is_not_forked():
    await raises(sdk.NotFoundException, lambda: Sandbox.fork(UNKNOWN))


@scenario()
async def an_unknown_template_is_refused():
    for name in ("no-such-template", "0123456789abcdef", "team/no-such:tag"):
        error = await raises(sdk.SandboxException, lambda: Sandbox.create(name))
        assert getattr(error, "status_code", None) == 404 or "404" in str(error), error


@scenario()
async def a_wrong_key_is_refused():
    async with fresh() as sandbox:
        for call in (
            lambda: Sandbox.create(api_key="e2b_0000"),
            lambda: Sandbox.connect(sandbox.sandbox_id, api_key="e2b_0000"),
            lambda: Sandbox.kill(sandbox.sandbox_id, api_key="e2b_0000"),
            lambda: Sandbox.create_snapshot(sandbox.sandbox_id, api_key="e2b_0000"),
            lambda: Sandbox.list(api_key="e2b_0000").next_items(),
            lambda: Sandbox.list_snapshots(api_key="e2b_0000").next_items(),
        ):
            await raises(sdk.AuthenticationException, call)
        assert await do(sandbox.is_running()) is True


@scenario()
async def a_killed_sandbox_is_gone_for_every_call():
    sandbox = await create()
    assert await do(sandbox.kill()) is True
    gone = sdk.TimeoutException
    await raises(gone, lambda: sandbox.files.read("/etc/hostname"))
    await raises(gone, lambda: sandbox.files.write("a", "1"))
    await raises(gone, lambda: sandbox.files.list("/"))
    await raises(gone, lambda: sandbox.commands.run("true"))
    await raises(gone, lambda: sandbox.commands.list())
    missing = sdk.SandboxNotFoundException
    await raises(missing, lambda: sandbox.create_snapshot())
    await raises(missing, lambda: sandbox.pause())
    await raises(missing, lambda: sandbox.connect())
    await raises(missing, lambda: sandbox.set_timeout(60))


@scenario()
async def a_command_does_not_outlive_its_sandbox():
    sandbox = await create()
    running = await Running.command(sandbox, "echo begun; sleep 300", timeout=0)
    await running.shows("begun")
    assert await do(sandbox.kill()) is True
    # The command was killed, or nobody can say any more: never that it ended well.
    await raises((sdk.CommandExitException, sdk.TimeoutException), running.wait)


@scenario()
async def a_bad_request_says_what_is_wrong():
    async with fresh() as sandbox:
        error = await raises(
            sdk.SandboxException, lambda: Sandbox.set_timeout(sandbox.sandbox_id, -1)
        )
        assert not isinstance(error, sdk.NotFoundException), error


@scenario("snapshot_names")
async def a_bad_name_is_refused():
    async with fresh() as sandbox:
        for name in ("a b", "x" * 1000, "../up"):
            error = await raises(
                sdk.SandboxException, lambda: sandbox.create_snapshot(name=name)
            )
            assert not isinstance(error, sdk.NotFoundException), error
