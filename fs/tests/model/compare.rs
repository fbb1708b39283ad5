//! Comparing a view with the model, whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use floe_fs::View;
use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Errno, OpError};
use floe_fs::id::Ino;

use super::bytes::{Bytes, len};
use super::tree::{Body, Node, State};
use super::{Outcome, ensure};

/// Files up to this size are read whole.
const WHOLE_MAX: u64 = 1 << 20;
/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;
/// Files up to this size may be kept inline, where every byte counts.
const INLINE_MAX: u64 = 8192;
/// What the disk's own maps can add to a file.
const SPACE_SLACK: u64 = 128 << 10;

pub fn errno(error: &OpError) -> i32 {
    Errno::from(error).0
}

/// Every node that the model has, by number and by name, and no name besides.
pub fn view(view: &View, state: &State) -> Outcome {
    for (&ino, expected) in &state.nodes {
        node(view, ino, expected).map_err(|error| format!("inode {ino}: {error}"))?;
    }
    Ok(())
}

fn node(view: &View, ino: u64, expected: &Node) -> Outcome {
    let attr = view
        .getattr(Ino(ino))
        .map_err(|error| format!("getattr: {error}"))?;
    let size = match &expected.body {
        Body::File(bytes) => bytes.size,
        Body::Directory { .. } => 4096,
        Body::Symlink(target) => target.len() as u64,
        Body::Other => 0,
    };
    ensure!(attr.kind == expected.kind, "kind {:?}", attr.kind);
    ensure!(
        attr.perm == expected.perm,
        "mode {:o}, not {:o}",
        attr.perm,
        expected.perm
    );
    let (ids, expected_ids) = ((attr.uid, attr.gid), (expected.uid, expected.gid));
    ensure!(ids == expected_ids, "owner {ids:?}, not {expected_ids:?}");
    ensure!(
        attr.nlink == expected.nlink,
        "{} links, not {}",
        attr.nlink,
        expected.nlink
    );
    ensure!(attr.rdev == expected.rdev, "device {}", attr.rdev);
    ensure!(attr.size == size, "size {}, not {size}", attr.size);
    for (what, time, expected) in [
        ("atime", attr.atime, expected.atime),
        ("mtime", attr.mtime, expected.mtime),
        ("ctime", attr.ctime, expected.ctime),
        ("btime", attr.btime, expected.btime),
    ] {
        ensure!(time == expected, "{what} {time:?}, not {expected:?}");
    }
    xattrs(view, ino, expected)?;
    match &expected.body {
        Body::File(bytes) => {
            contents(view, ino, bytes)?;
            space(attr.blocks, bytes)
        }
        Body::Directory { parent, entries } => {
            let names = entries.iter();
            let names = names.map(|(name, named)| (name.clone(), named.ino));
            directory(view, ino, *parent, &names.collect())
        }
        Body::Symlink(target) => {
            let found = view.readlink(Ino(ino)).map_err(|e| e.to_string())?;
            ensure!(found == *target, "target {:?}", found.escape_ascii());
            Ok(())
        }
        Body::Other => Ok(()),
    }
}

fn xattrs(view: &View, ino: u64, expected: &Node) -> Outcome {
    let names = view.listxattr(Ino(ino)).map_err(|e| e.to_string())?;
    let known: Vec<_> = expected.xattrs.keys().cloned().collect();
    let mut sorted = names.clone();
    sorted.sort();
    ensure!(sorted == known, "attributes {names:?}, not {known:?}");
    for (name, value) in &expected.xattrs {
        let found = view.getxattr(Ino(ino), name).map_err(|e| e.to_string())?;
        ensure!(found == *value, "attribute {}", name.escape_ascii());
    }
    match view.getxattr(Ino(ino), b"user.absent") {
        Err(error) if errno(&error) == libc::ENODATA => Ok(()),
        other => Err(format!("an absent attribute reads {other:?}")),
    }
}

fn directory(view: &View, ino: u64, parent: u64, expected: &BTreeMap<Vec<u8>, u64>) -> Outcome {
    let mut found = Vec::new();
    view.readdir(Ino(ino), 0, false, &mut |entry| {
        found.push((entry.name.to_vec(), entry.ino.0, entry.kind, entry.cookie));
        true
    })
    .map_err(|error| format!("readdir: {error}"))?;
    let ascending = found.windows(2).all(|pair| pair[0].3 < pair[1].3);
    ensure!(ascending, "cookies do not ascend: {found:?}");
    ensure!(found.len() >= 2, "no dots");
    let mut names = found.split_off(2);
    let dots: Vec<_> = found
        .iter()
        .map(|(name, ino, ..)| (&name[..], *ino))
        .collect();
    let expected_dots = [(&b"."[..], ino), (&b".."[..], parent)];
    ensure!(
        dots == expected_dots,
        "dots {dots:?}, not {expected_dots:?}"
    );
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let listed: Vec<_> = names.iter().map(|(name, ino, ..)| (name, ino)).collect();
    let known: Vec<_> = expected.iter().collect();
    ensure!(listed == known, "names {listed:?}, not {known:?}");
    for (name, child, kind, _) in &names {
        let entry = view.lookup(Ino(ino), name).map_err(|e| e.to_string())?;
        let entry = entry.ok_or("a listed name is not found")?;
        view.forget(entry.ino, 1);
        ensure!(entry.ino.0 == *child, "lookup finds {}", entry.ino);
        ensure!(entry.attr.kind == *kind, "listed as {kind:?}");
    }
    for number in 0..12 {
        let name = super::op::name(number);
        if !expected.contains_key(&name) {
            let found = view.lookup(Ino(ino), &name).map_err(|e| e.to_string())?;
            ensure!(found.is_none(), "{} is found", name.escape_ascii());
        }
    }
    Ok(())
}

fn read(view: &View, ino: u64, offset: u64, count: u64) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    view.read(Ino(ino), offset, len(count), &mut out)
        .map_err(|error| format!("reading at {offset}: {error}"))?;
    Ok(out)
}

fn same(found: &[u8], expected: &[u8], offset: u64) -> Outcome {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    Err(match at {
        Some(at) => format!(
            "byte {} is {}, not {}",
            offset + at as u64,
            found[at],
            expected[at]
        ),
        None => format!("{} bytes at {offset}, not {}", found.len(), expected.len()),
    })
}

/// Every byte: what the engine calls data is read and compared, what it calls a hole must be zeros
/// in the model, and what the model has is read whatever the engine calls it.
fn contents(view: &View, ino: u64, bytes: &Bytes) -> Outcome {
    let size = bytes.size;
    if size <= WHOLE_MAX {
        same(
            &read(view, ino, 0, size + 10)?,
            &bytes.read(0, len(size)),
            0,
        )?;
    }
    let data: Vec<_> = bytes.data().collect();
    for range in &data {
        let count = range.end - range.start;
        let expected = bytes.read(range.start, len(count));
        same(
            &read(view, ino, range.start, count)?,
            &expected,
            range.start,
        )?;
    }
    let mut at = 0;
    while at < size {
        let start = match view.seek(Ino(ino), at, false) {
            Ok(start) => start,
            Err(error) if errno(&error) == libc::ENXIO => size,
            Err(error) => return Err(format!("seek: {error}")),
        };
        ensure!((at..=size).contains(&start), "data at {start}, behind {at}");
        let next = bytes.next_data(at).unwrap_or(size);
        ensure!(start <= next, "hole {at}..{start} hides the byte at {next}");
        if start == size {
            break;
        }
        let end = view
            .seek(Ino(ino), start, true)
            .map_err(|e| e.to_string())?;
        ensure!(start < end && end <= size, "data {start}..{end} of {size}");
        let mut from = start;
        while from < end {
            let count = CHUNK.min(end - from);
            let expected = bytes.read(from, len(count));
            same(&read(view, ino, from, count)?, &expected, from)?;
            from += count;
        }
        at = end;
    }
    ensure!(
        read(view, ino, size, 10)?.is_empty(),
        "bytes behind the end"
    );
    Ok(())
}

/// The space a file is said to take: some if it has bytes, and not absurdly much.
fn space(blocks: u64, bytes: &Bytes) -> Outcome {
    let space = blocks * 512;
    ensure!(
        blocks > 0 || bytes.data().next().is_none(),
        "no space for bytes that are not zeros"
    );
    let most = match bytes.space_max() {
        // Kept inline, zeros too.
        0 if bytes.size <= INLINE_MAX => bytes.size.next_multiple_of(512),
        0 => 0,
        most => most + SPACE_SLACK,
    };
    ensure!(space <= most, "{space} bytes of space, {most} at most");
    Ok(())
}

/// Waits until an inode that nobody has any more is gone.
pub fn reclaimed(view: &View, ino: u64) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match view.getattr(Ino(ino)) {
            Err(error) if errno(&error) == libc::ESTALE => break,
            Err(error) => return Err(format!("inode {ino}: {error}")),
            Ok(_) if Instant::now() > deadline => {
                return Err(format!("inode {ino} is not reclaimed"));
            }
            Ok(_) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    let read = view.read(Ino(ino), 0, 10, &mut Vec::new());
    let open = view.open(Ino(ino), floe_fs::dispatch::OpenMode::Read);
    for result in [read, open] {
        let code = result.as_ref().map_err(errno);
        ensure!(code == Err(libc::ESTALE), "inode {ino} answers {result:?}");
    }
    Ok(())
}

/// Whether a directory's kind of file can be opened.
pub fn open_errors(kind: FileKind) -> Vec<i32> {
    match kind {
        FileKind::File => Vec::new(),
        FileKind::Directory => vec![libc::EISDIR],
        _ => vec![libc::EINVAL],
    }
}
