"""Commands and terminals."""

import asyncio

from common import ASYNC, Running, do, fresh, raises, scenario, sdk, shared, until


async def run(line, **options):
    return await do((await shared()).commands.run(line, **options))


async def listed_pids(sandbox):
    return {process.pid for process in await do(sandbox.commands.list())}


@scenario()
async def output_and_exit_code_are_told_apart():
    sandbox = await shared()
    result = await run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0), result
    error = await raises(
        sdk.CommandExitException,
        lambda: sandbox.commands.run("echo out; echo err >&2; exit 3"),
    )
    assert (error.stdout, error.stderr, error.exit_code) == ("out\n", "err\n", 3), error


@scenario()
async def a_command_that_is_not_there_says_so():
    sandbox = await shared()
    error = await raises(
        sdk.CommandExitException, lambda: sandbox.commands.run("no-such-command-anywhere")
    )
    assert error.exit_code == 127, error
    assert "no-such-command-anywhere" in error.stderr, error


@scenario()
async def environment_and_directory_are_those_asked_for():
    sandbox = await shared()
    result = await run("echo $A-$B; pwd", envs={"A": "1", "B": "two words"}, cwd="/usr/lib")
    assert result.stdout == "1-two words\n/usr/lib\n", result
    result = await run("pwd; id -un; echo $HOME")
    assert result.stdout == "/home/user\nuser\n/home/user\n", result
    result = await run("id -un; id -u; echo $HOME", user="root")
    assert result.stdout == "root\n0\n/root\n", result
    error = await raises(sdk.SandboxException, lambda: sandbox.commands.run("pwd", cwd="/no/dir"))
    assert not isinstance(error, (sdk.CommandExitException, sdk.TimeoutException)), error
    await raises(
        (sdk.AuthenticationException, sdk.SandboxException),
        lambda: sandbox.commands.run("id", user="no-such-user"),
    )


@scenario()
async def the_environment_of_a_sandbox_is_that_of_its_commands():
    async with fresh(envs={"WHOLE": "every command's", "B": "1"}) as sandbox:
        result = await do(sandbox.commands.run("echo $WHOLE $B", envs={"B": "2"}))
        assert result.stdout == "every command's 2\n", result


@scenario()
async def output_is_shown_as_it_comes():
    shown = {"out": "", "err": ""}

    def take(stream):
        def add(text):
            shown[stream] += text

        return add

    line = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    result = await run(line, on_stdout=take("out"), on_stderr=take("err"))
    assert shown == {"out": "o1\no2\no3\n", "err": "e1\ne2\ne3\n"}, shown
    assert (result.stdout, result.stderr) == (shown["out"], shown["err"])


@scenario()
async def all_of_much_output_arrives():
    line = "seq 1000000"
    result = await run(line)
    expected = "".join(f"{number}\n" for number in range(1, 1_000_001))
    assert result.stdout == expected, (len(result.stdout), len(expected))
    result = await run("head -c 300000 /dev/zero | tr '\\0' x >&2; printf 'ü%.0s' $(seq 20000)")
    assert (len(result.stderr), result.stdout) == (300_000, "ü" * 20_000)


@scenario()
async def a_command_in_the_background_is_waited_for():
    sandbox = await shared()
    running = await Running.command(sandbox, "echo begun; read line; echo $line; exit 4", stdin=True)
    await running.shows("begun")
    assert running.pid in await listed_pids(sandbox)
    await do(sandbox.commands.send_stdin(running.pid, "go on\n"))
    error = await raises(sdk.CommandExitException, running.wait)
    assert (error.exit_code, error.stdout) == (4, "begun\ngo on\n"), error

    async def gone():
        return running.pid not in await listed_pids(sandbox)

    await until(gone, "a command that has ended is not listed")


@scenario()
async def processes_are_listed_as_they_were_asked_for():
    sandbox = await shared()
    running = await Running.command(
        sandbox, "echo ready; sleep 300", envs={"LISTED": "yes"}, cwd="/usr"
    )
    await running.shows("ready")
    found = [p for p in await do(sandbox.commands.list()) if p.pid == running.pid]
    assert len(found) == 1
    process = found[0]
    assert process.cmd == "/bin/bash" and "echo ready; sleep 300" in process.args, process
    assert process.envs.get("LISTED") == "yes" and process.cwd == "/usr", process
    assert await do(running.handle.kill()) is True


@scenario()
async def input_arrives_piece_by_piece():
    sandbox = await shared()
    line = "for i in 1 2; do read line; echo got $line; done"
    running = await Running.command(sandbox, line, stdin=True)
    await do(sandbox.commands.send_stdin(running.pid, "one\n"))
    await running.shows("got one")
    await do(sandbox.commands.send_stdin(running.pid, "two\n"))
    result = await running.wait()
    assert result.stdout == "got one\ngot two\n", result


@scenario()
async def a_command_without_input_reads_nothing():
    result = await run("cat; echo ended")
    assert result.stdout == "ended\n", result


@scenario("close_stdin")
async def input_is_closed():
    sandbox = await shared()
    running = await Running.command(sandbox, "cat; echo ended", stdin=True)
    await do(running.handle.send_stdin("text\n"))
    await running.shows("text")
    await do(running.handle.close_stdin())
    result = await running.wait()
    assert result.stdout == "text\nended\n", result


@scenario("stream_input")
async def input_is_streamed():
    sandbox = await shared()
    running = await Running.command(sandbox, "head -c 6000000 | wc -c", stdin=True)
    pieces = [b"x" * 60_000] * 100
    if ASYNC:
        given = sandbox.commands.stream_input(running.pid)
        for piece in pieces:
            await given.send(piece)
        await given.close()
    else:
        sandbox.commands.stream_input(running.pid, pieces)
    result = await running.wait()
    assert result.stdout == "6000000\n", result


@scenario()
async def one_attaches_again_to_what_runs():
    sandbox = await shared()
    running = await Running.command(sandbox, "echo first; read x; echo second $x", stdin=True)
    await running.shows("first")
    again = await Running.attached(sandbox, running.pid)
    assert again.pid == running.pid
    await do(sandbox.commands.send_stdin(running.pid, "and last\n"))
    result = await again.wait()
    assert result.stdout.endswith("second and last\n"), result
    result = await running.wait()
    assert result.stdout == "first\nsecond and last\n", result


@scenario()
async def a_command_goes_on_when_nobody_listens():
    sandbox = await shared()
    running = await Running.command(sandbox, "echo first; read x; echo $x > heard", stdin=True)
    await running.shows("first")
    await do(running.handle.disconnect())
    assert running.pid in await listed_pids(sandbox)
    await do(sandbox.commands.send_stdin(running.pid, "still here\n"))

    async def heard():
        return await do(sandbox.files.exists("heard")) and (
            await do(sandbox.files.read("heard")) == "still here\n"
        )

    await until(heard, "the command to go on")


@scenario()
async def nobody_attaches_to_what_is_not_there():
    sandbox = await shared()
    await raises(sdk.NotFoundException, lambda: sandbox.commands.connect(999_999))


@scenario()
async def a_command_is_killed_once():
    sandbox = await shared()
    running = await Running.command(sandbox, "echo ready; sleep 300 & wait")
    await running.shows("ready")
    assert await do(running.handle.kill()) is True
    error = await raises(sdk.CommandExitException, running.wait)
    assert error.exit_code != 0, error

    async def gone():
        return await do(sandbox.commands.kill(running.pid)) is False

    await until(gone, "a killed command to be gone")
    assert await do(sandbox.commands.kill(999_999)) is False


@scenario()
async def a_command_past_its_time_is_a_timeout():
    sandbox = await shared()
    await raises(sdk.TimeoutException, lambda: sandbox.commands.run("sleep 300", timeout=1))
    result = await do(sandbox.commands.run("echo well"))
    assert result.stdout == "well\n"


@scenario()
async def a_terminal_is_one():
    sandbox = await shared()
    terminal = await Running.terminal(sandbox, 24, 80, envs={"ASKED": "for"}, cwd="/usr")
    send = sandbox.pty.send_stdin
    await do(send(terminal.pid, b"test -t 0 && echo is-$((40+2))-tty\n"))
    await terminal.shows("is-42-tty")
    await do(send(terminal.pid, b"echo size=$(stty size | tr ' ' x)=\n"))
    await terminal.shows("size=24x80=")
    await do(sandbox.pty.resize(terminal.pid, sdk.PtySize(rows=50, cols=132)))
    await do(send(terminal.pid, b"echo size=$(stty size | tr ' ' x)=\n"))
    await terminal.shows("size=50x132=")
    await do(send(terminal.pid, b"echo $ASKED-$((1+1)) at $(pwd)\n"))
    await terminal.shows("for-2 at /usr")
    # What is typed to stop a command stops it. It says itself that it runs: the shell would not die.
    await do(send(terminal.pid, b"sh -c 'echo sleeps-$((2+2)); exec sleep 300'\n"))
    await terminal.shows("sleeps-4")
    await do(send(terminal.pid, b"\x03"))
    await do(send(terminal.pid, b"echo awake-$((3+3))\n"))
    await terminal.shows("awake-6")
    assert await do(sandbox.pty.kill(terminal.pid)) is True
    await raises(sdk.CommandExitException, terminal.wait)
    assert await do(sandbox.pty.kill(999_999)) is False


@scenario()
async def a_terminal_ends_by_itself():
    sandbox = await shared()
    terminal = await Running.terminal(sandbox, 24, 80)
    await do(sandbox.pty.send_stdin(terminal.pid, b"exit 7\n"))
    error = await raises(sdk.CommandExitException, terminal.wait)
    assert error.exit_code == 7, error


@scenario()
async def many_commands_run_side_by_side():
    sandbox = await shared()
    started = [
        await Running.command(sandbox, f"sleep 0.1; echo {number}") for number in range(10)
    ]
    assert len({running.pid for running in started}) == 10
    if ASYNC:
        results = await asyncio.gather(*(running.wait() for running in started))
    else:
        results = [await running.wait() for running in started]
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(10)]

