"""Files: contents in every form, lists, and what is said of one."""

import datetime
import io
import os
import urllib.error
import urllib.request

from common import ASYNC, RUN, do, fresh, raises, scenario, sdk, shared

EVERY_BYTE = bytes(range(256))
DIR = f"/home/user/files-{RUN}"


def timestamp(time):
    """Seconds of a time; one that says no zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.timezone.utc)
    return time.timestamp()


def url_opened(sandbox, url, data=None, headers=()):
    """Opens a link of a sandbox, by the host name that its clients would use."""
    headers = {"Host": sandbox.get_host(49983), **dict(headers)}
    return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30)


@scenario()
async def text_is_read_as_it_was_written():
    files = (await shared()).files
    info = await do(files.write(f"{DIR}/text", "höher\nund weiter\n"))
    assert (info.name, info.path) == ("text", f"{DIR}/text"), info
    assert await do(files.read(f"{DIR}/text")) == "höher\nund weiter\n"
    await do(files.write(f"{DIR}/text", "short"))
    assert await do(files.read(f"{DIR}/text")) == "short"
    await do(files.write(f"{DIR}/empty", ""))
    assert await do(files.read(f"{DIR}/empty")) == ""


@scenario()
async def bytes_are_read_as_they_were_written():
    files = (await shared()).files
    data = EVERY_BYTE * 8192
    await do(files.write(f"{DIR}/bytes", data))
    assert bytes(await do(files.read(f"{DIR}/bytes", format="bytes"))) == data


@scenario()
async def a_path_without_a_slash_begins_at_home():
    files = (await shared()).files
    name = f"relative-{RUN}"
    info = await do(files.write(name, "here"))
    assert info.path == f"/home/user/{name}", info
    assert await do(files.read(f"/home/user/{name}")) == "here"
    await do(files.write(name, "there", user="root"))
    assert await do(files.read(f"/root/{name}", user="root")) == "there"
    assert await do(files.read(name)) == "here"


@scenario()
async def odd_names_are_ordinary():
    files = (await shared()).files
    path = f"{DIR}/a b+c%20d&e=f?g#h'\"ü\\"
    await do(files.write(path, "odd"))
    assert await do(files.read(path)) == "odd"
    names = {entry.name for entry in await do(files.list(DIR))}
    assert os.path.basename(path) in names, names
    await do(files.remove(path))
    assert not await do(files.exists(path))


@scenario()
async def a_file_is_read_in_pieces():
    files = (await shared()).files
    data = EVERY_BYTE * 20_000
    await do(files.write(f"{DIR}/pieces", data))
    stream = await do(files.read(f"{DIR}/pieces", format="stream"))
    read = b""
    if ASYNC:
        async for piece in stream:
            read += piece
    else:
        for piece in stream:
            read += piece
    assert read == data


@scenario()
async def a_file_is_written_from_an_open_one():
    files = (await shared()).files
    data = EVERY_BYTE * 20_000
    await do(files.write(f"{DIR}/open", io.BytesIO(data)))
    assert bytes(await do(files.read(f"{DIR}/open", format="bytes"))) == data


@scenario("octet_stream")
async def a_file_is_written_as_one_body():
    files = (await shared()).files
    for use in (True, False):
        await do(files.write(f"{DIR}/body", EVERY_BYTE, use_octet_stream=use))
        assert bytes(await do(files.read(f"{DIR}/body", format="bytes"))) == EVERY_BYTE


@scenario("gzip")
async def contents_are_compressed_on_the_way():
    files = (await shared()).files
    data = EVERY_BYTE * 8192
    await do(files.write(f"{DIR}/packed", data, gzip=True))
    assert bytes(await do(files.read(f"{DIR}/packed", format="bytes"))) == data
    assert bytes(await do(files.read(f"{DIR}/packed", format="bytes", gzip=True))) == data


@scenario()
async def several_files_are_written_at_once():
    files = (await shared()).files
    written = [{"path": f"{DIR}/many/{number}", "data": f"{number}"} for number in range(5)]
    infos = await do(files.write_files(written))
    assert [info.path for info in infos] == [entry["path"] for entry in written]
    for entry in written:
        assert await do(files.read(entry["path"])) == entry["data"]


@scenario()
async def a_directory_is_listed():
    files = (await shared()).files
    top = f"{DIR}/listed"
    await do(files.write(f"{top}/file", "12345"))
    await do(files.write(f"{top}/dir/below/deep", "1"))
    entries = {entry.name: entry for entry in await do(files.list(top))}
    assert set(entries) == {"file", "dir"}, entries
    assert entries["file"].type == sdk.FileType.FILE
    assert entries["dir"].type == sdk.FileType.DIR
    assert (entries["file"].size, entries["file"].path) == (5, f"{top}/file")
    assert (entries["file"].owner, entries["file"].group) == ("user", "user")
    paths = {entry.path for entry in await do(files.list(top, depth=2))}
    assert paths == {f"{top}/file", f"{top}/dir", f"{top}/dir/below"}, paths
    paths = {entry.path for entry in await do(files.list(top, depth=3))}
    assert f"{top}/dir/below/deep" in paths, paths


@scenario("symlink_type")
async def links_are_listed():
    sandbox = await shared()
    top = f"{DIR}/links"
    await do(sandbox.files.write(f"{top}/file", "1"))
    await do(sandbox.commands.run(f"ln -s file {top}/good; ln -s nowhere {top}/bad"))
    names = {entry.name for entry in await do(sandbox.files.list(top))}
    assert names == {"file", "good", "bad"}, names


@scenario()
async def what_is_said_of_a_file_is_true():
    sandbox = await shared()
    path = f"{DIR}/told"
    await do(sandbox.files.write(path, "12345678"))
    await do(sandbox.commands.run(f"chmod 640 {path}; ln -s {path} {path}-link"))
    info = await do(sandbox.files.get_info(path))
    assert (info.name, info.path, info.size) == ("told", path, 8), info
    assert info.type == sdk.FileType.FILE
    assert info.mode & 0o777 == 0o640, info
    assert info.permissions.endswith("rw-r-----"), info
    assert (info.owner, info.group) == ("user", "user"), info
    printed = await do(sandbox.commands.run(f"stat -c %Y {path}"))
    assert abs(timestamp(info.modified_time) - int(printed.stdout)) <= 1, info
    link = await do(sandbox.files.get_info(f"{path}-link"))
    assert link.symlink_target == path, link


@scenario()
async def a_file_is_renamed():
    files = (await shared()).files
    await do(files.write(f"{DIR}/old", "moved"))
    info = await do(files.rename(f"{DIR}/old", f"{DIR}/new"))
    assert (info.name, info.path) == ("new", f"{DIR}/new"), info
    assert not await do(files.exists(f"{DIR}/old"))
    assert await do(files.read(f"{DIR}/new")) == "moved"
    await raises(sdk.NotFoundException, lambda: files.rename(f"{DIR}/old", f"{DIR}/x"))


@scenario()
async def a_directory_is_made_once():
    files = (await shared()).files
    path = f"{DIR}/made/deep/down"
    assert await do(files.make_dir(path)) is True
    assert await do(files.make_dir(path)) is False
    info = await do(files.get_info(path))
    assert (info.type, info.owner) == (sdk.FileType.DIR, "user"), info


@scenario()
async def files_and_trees_are_removed():
    files = (await shared()).files
    await do(files.write(f"{DIR}/gone/a/b", "1"))
    assert await do(files.exists(f"{DIR}/gone/a/b")) is True
    await do(files.remove(f"{DIR}/gone/a/b"))
    assert await do(files.exists(f"{DIR}/gone/a/b")) is False
    await do(files.remove(f"{DIR}/gone"))
    assert await do(files.exists(f"{DIR}/gone")) is False


@scenario()
async def a_file_of_root_is_roots():
    files = (await shared()).files
    path = f"/root/own-{RUN}"
    await do(files.write(path, "1", user="root"))
    info = await do(files.get_info(path, user="root"))
    assert (info.owner, info.group) == ("root", "root"), info


@scenario()
async def what_is_wrong_with_a_path_is_said():
    files = (await shared()).files
    missing = f"{DIR}/missing"
    await raises(sdk.FileNotFoundException, lambda: files.read(missing))
    await raises(sdk.FileNotFoundException, lambda: files.list(missing))
    await raises(sdk.FileNotFoundException, lambda: files.get_info(missing))
    await raises(sdk.InvalidArgumentException, lambda: files.read("/home/user"))
    await raises(sdk.InvalidArgumentException, lambda: files.list("/etc/passwd"))
    await raises(
        sdk.AuthenticationException, lambda: files.read("/etc/passwd", user="no-such-user")
    )


@scenario()
async def a_link_to_a_file_needs_no_key_but_its_signature():
    sandbox = await shared()
    path = f"{DIR}/signed"
    await do(sandbox.files.write(path, "by link"))
    url = sandbox.download_url(path)
    assert url_opened(sandbox, url).read() == b"by link"
    url = sandbox.download_url(path, use_signature_expiration=600)
    assert url_opened(sandbox, url).read() == b"by link"
    for wrong in (
        url.replace("signature=v1_", "signature=v1_x"),
        url.replace("signed", "text"),
        sandbox.download_url(path, use_signature_expiration=-600),
        url.split("&")[0],
    ):
        try:
            answer = url_opened(sandbox, wrong)
        except urllib.error.HTTPError as error:
            assert error.code in (401, 403), (wrong, error.code)
        else:
            raise AssertionError(f"{wrong} was answered with {answer.status}")
    upload = sandbox.upload_url(f"{DIR}/uploaded")
    boundary = "b0undary"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n'
        f"Content-Type: application/octet-stream\r\n\r\nsent\r\n--{boundary}--\r\n"
    ).encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    assert url_opened(sandbox, upload, body, kind).status == 200
    assert await do(sandbox.files.read(f"{DIR}/uploaded")) == "sent"


@scenario()
async def a_file_is_in_its_sandbox_alone():
    async with fresh() as one:
        path = f"/home/user/only-here-{RUN}"
        await do(one.files.write(path, "mine"))
        other = await shared()
        assert await do(other.files.exists(path)) is False
