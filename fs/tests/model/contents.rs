//! Steps that read or change what files contain.

use floe_fs::dispatch::{Caller, Dispatch, Fallocate, SetAttr, Write};
use floe_fs::id::Ino;

use super::bytes::{len, pattern};
use super::op::{Op, Pick};
use super::run::{answer, pick_file};
use super::tree::{Stamps, Touched};
use super::world::Live;
use super::{compare, ensure};

const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// Who may keep set-id bits.
const ROOT: Caller = Caller { uid: 0, gid: 0 };

fn changed(ino: u64) -> Stamps {
    let touched = Touched {
        mtime: true,
        ctime: true,
        ..Touched::default()
    };
    Stamps::from([(ino, touched)])
}

pub fn operate(live: &mut Live, op: &Op) -> Result<Stamps, String> {
    match *op {
        Op::Write {
            file,
            offset,
            count,
            seed,
            append,
            kill_set_id,
        } => {
            let data = pattern(seed, count);
            write(live, file, offset, &data, append, kill_set_id)
        }
        Op::Read {
            file,
            offset,
            count,
        } => {
            let ino = pick_file(&live.state, file);
            let errors = live.state.file_errors(ino);
            let mut out = Vec::new();
            let result = live.view().read(Ino(ino), offset, count, &mut out);
            if answer(result, &errors)?.is_some() {
                let expected = live.state.bytes(ino).read(offset, count);
                ensure!(out == expected, "reads other bytes at {offset}");
            }
            Ok(Stamps::new())
        }
        Op::Seek { file, offset, hole } => seek(live, file, offset, hole),
        Op::Truncate { file, size, caller } => truncate(live, file, size, caller),
        Op::Fallocate {
            file,
            mode,
            offset,
            count,
        } => fallocate(live, file, mode, offset, count),
        Op::CopyRange { from, to, count } => copy_range(live, from, to, count),
        ref other => unreachable!("{other:?}"),
    }
}

fn write(
    live: &mut Live,
    file: Pick,
    offset: u64,
    data: &[u8],
    append: bool,
    kill_set_id: bool,
) -> Result<Stamps, String> {
    let ino = pick_file(&live.state, file);
    let mut errors = live.state.file_errors(ino);
    let mut at = offset;
    if append && errors.is_empty() {
        at = live.state.bytes(ino).size;
        if at > 12 << 30 {
            // The disk below may not have files that large.
            at = offset;
        }
    }
    let append = append && at != offset;
    if at.saturating_add(data.len() as u64) > SIZE_MAX {
        errors.push(libc::EFBIG);
    }
    let write = Write {
        offset,
        data,
        append,
        kill_set_id,
    };
    if answer(live.view().write(Ino(ino), write), &errors)?.is_none() {
        return Ok(Stamps::new());
    }
    live.state.edit_bytes(ino).write(at, data);
    if kill_set_id {
        live.state.kill_set_id(ino);
    }
    Ok(changed(ino))
}

fn seek(live: &mut Live, file: Pick, offset: u64, hole: bool) -> Result<Stamps, String> {
    let ino = pick_file(&live.state, file);
    let errors = live.state.file_errors(ino);
    let result = live.view().seek(Ino(ino), offset, hole);
    if !errors.is_empty() {
        answer(result, &errors)?;
        return Ok(Stamps::new());
    }
    let bytes = live.state.bytes(ino);
    let next = bytes.next_data(offset);
    match result {
        Err(error) => {
            ensure!(compare::errno(&error) == libc::ENXIO, "seek: {error}");
            let nothing = !hole && next.is_none();
            ensure!(offset >= bytes.size || nothing, "ENXIO at {offset}");
        }
        Ok(found) => {
            ensure!(offset < bytes.size, "finds {found} behind the end");
            ensure!((offset..=bytes.size).contains(&found), "finds {found}");
            // A hole may be called data, data never a hole.
            let passed = next.filter(|&next| !hole && next < found);
            ensure!(passed.is_none(), "{found} is behind data at {passed:?}");
            let data = hole && found < bytes.size && bytes.next_data(found) == Some(found);
            ensure!(!data, "the hole at {found} holds data");
        }
    }
    Ok(Stamps::new())
}

fn truncate(live: &mut Live, file: Pick, size: u64, caller: Caller) -> Result<Stamps, String> {
    let ino = pick_file(&live.state, file);
    let mut errors = live.state.file_errors(ino);
    if size > SIZE_MAX {
        errors.push(libc::EFBIG);
    }
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let Some(attr) = answer(live.view().setattr(caller, Ino(ino), set), &errors)? else {
        return Ok(Stamps::new());
    };
    ensure!(attr.size == size, "size {}", attr.size);
    live.state.edit_bytes(ino).resize(size);
    if caller.uid != 0 {
        live.state.kill_set_id(ino);
    }
    Ok(changed(ino))
}

fn fallocate(
    live: &mut Live,
    file: Pick,
    mode: Fallocate,
    offset: u64,
    count: u64,
) -> Result<Stamps, String> {
    let ino = pick_file(&live.state, file);
    let mut errors = live.state.file_errors(ino);
    let end = offset.saturating_add(count);
    if end > SIZE_MAX {
        errors.push(libc::EFBIG);
    }
    if count == 0 {
        errors.push(libc::EINVAL);
    }
    let result = live.view().fallocate(ROOT, Ino(ino), mode, offset, count);
    if answer(result, &errors)?.is_none() {
        return Ok(Stamps::new());
    }
    let bytes = live.state.edit_bytes(ino);
    let grows = matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange);
    match mode {
        Fallocate::Allocate | Fallocate::AllocateKeepSize => bytes.reserve(offset..end),
        _ => bytes.zero(offset..end.min(bytes.size)),
    }
    if grows && end > bytes.size {
        bytes.resize(end);
    }
    Ok(changed(ino))
}

fn copy_range(
    live: &mut Live,
    (from, from_offset): (Pick, u64),
    (to, to_offset): (Pick, u64),
    count: u64,
) -> Result<Stamps, String> {
    let (from, to) = (pick_file(&live.state, from), pick_file(&live.state, to));
    // The kernel refuses to copy onto itself.
    if from == to && from_offset.abs_diff(to_offset) < count {
        return Ok(Stamps::new());
    }
    let mut errors = live.state.file_errors(from);
    let data = if errors.is_empty() {
        live.state.bytes(from).read(from_offset, len(count))
    } else {
        Vec::new()
    };
    if !data.is_empty() {
        errors.extend(live.state.file_errors(to));
    }
    let result =
        live.view()
            .copy_range(ROOT, (Ino(from), from_offset), (Ino(to), to_offset), count);
    let Some(copied) = answer(result, &errors)? else {
        return Ok(Stamps::new());
    };
    ensure!(copied == data.len() as u64, "copies {copied} bytes");
    if data.is_empty() {
        return Ok(Stamps::new());
    }
    live.state.edit_bytes(to).write(to_offset, &data);
    Ok(changed(to))
}
