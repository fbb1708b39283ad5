//! Doing one step in the engine and in the model, and comparing what they answer.

use std::fmt::Debug;

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::{
    Dispatch, NewNode, OpError, OpenMode, RenameFlags, SetAttr, SetTime, XattrMode,
};
use floe_fs::id::Ino;

use super::bytes::pattern;
use super::op::{self, NamePick, Op, Pick, Step, Time};
use super::tree::{NewFile, Stamps, State, Touched};
use super::world::{Listing, Live, World};
use super::{Outcome, acl, compare, ensure};

/// Compares an answer with the errors that may be; what the engine returned if it should succeed.
pub fn answer<T: Debug>(result: Result<T, OpError>, errors: &[i32]) -> Result<Option<T>, String> {
    match result {
        Ok(value) if errors.is_empty() => Ok(Some(value)),
        Err(error) if errors.contains(&compare::errno(&error)) => Ok(None),
        other => Err(format!("answers {other:?}, expected errors {errors:?}")),
    }
}

fn pick_from(candidates: &[u64], state: &State, pick: Pick) -> u64 {
    let all: Vec<u64> = state.nodes.keys().copied().collect();
    match pick {
        65_500.. => 999_999_999,
        65_000.. => all[usize::from(pick) % all.len()],
        _ if candidates.is_empty() => all[usize::from(pick) % all.len()],
        _ => candidates[usize::from(pick) % candidates.len()],
    }
}

fn pick_kind(state: &State, kind: FileKind, pick: Pick) -> u64 {
    let nodes = state.nodes.iter();
    let fitting = nodes.filter(|(_, node)| node.kind == kind);
    let fitting: Vec<u64> = fitting.map(|(&ino, _)| ino).collect();
    pick_from(&fitting, state, pick)
}

fn pick_any(state: &State, pick: Pick) -> u64 {
    pick_from(&[], state, pick)
}

fn pick_directory(state: &State, pick: Pick) -> u64 {
    pick_kind(state, FileKind::Directory, pick)
}

/// Directories that have names in them, mostly.
fn pick_full(state: &State, pick: Pick) -> u64 {
    let directories = state.nodes.keys().copied();
    let full: Vec<u64> = directories
        .filter(|&d| !state.entries(d).is_empty())
        .collect();
    pick_from(&full, state, pick)
}

pub fn pick_file(state: &State, pick: Pick) -> u64 {
    pick_kind(state, FileKind::File, pick)
}

fn pick_name(state: &State, parent: u64, pick: NamePick) -> Vec<u8> {
    let entries = state.entries(parent);
    if pick.existing && !entries.is_empty() {
        let at = usize::from(pick.number) % entries.len();
        entries.keys().nth(at).cloned().unwrap_or_default()
    } else {
        op::name(pick.number)
    }
}

pub fn step(world: &mut World, step: &Step) -> Outcome {
    let at = usize::from(step.workspace) % world.live.len();
    match &step.op {
        Op::Snapshot => world.snapshot(at),
        Op::ForkWorkspace { count } => world.fork_workspace(at, usize::from(*count)),
        Op::ForkSnapshot { snapshot } => world.fork_snapshot(usize::from(*snapshot)),
        Op::Rollback { snapshot } => world.roll_back(at, usize::from(*snapshot)),
        Op::CloseView => {
            world.close_view(at);
            Ok(())
        }
        Op::DeleteWorkspace => world.delete_workspace(at),
        Op::DeleteSnapshot { snapshot } => world.delete_snapshot(usize::from(*snapshot)),
        Op::Protect { snapshot } => world.protect(usize::from(*snapshot)),
        Op::Retain {
            keep_last,
            automatic,
            of_all,
        } => world.retain(at, *keep_last, *automatic, *of_all),
        Op::AtQuota { parent } => {
            world.open(at)?;
            let parent = pick_directory(&world.live[at].state, *parent);
            world.at_quota(at, parent)
        }
        Op::Collect => world.collect(),
        Op::Hash => world.hash(),
        Op::Reopen => world.reopen(),
        Op::Compare => world.compare(),
        Op::Check => world.check(),
        op => {
            world.open(at)?;
            let life = world.new_life();
            let live = &mut world.live[at];
            let from = Timestamp::now();
            let mut made = Vec::new();
            let stamps = operate(live, op, life, &mut made)?;
            live.stamped(&stamps, from)?;
            live.sweep();
            for ino in made {
                ensure!(world.used.insert(ino), "inode number {ino} is used again");
            }
            Ok(())
        }
    }
}

fn open_mode(write: bool) -> OpenMode {
    if write {
        OpenMode::ReadWrite
    } else {
        OpenMode::Read
    }
}

fn operate(live: &mut Live, op: &Op, life: u64, made: &mut Vec<u64>) -> Result<Stamps, String> {
    match op {
        Op::Make { .. } => make(live, op, life, made),
        Op::Lookup { parent, name } => {
            let parent = pick_full(&live.state, *parent);
            lookup(live, parent, &pick_name(&live.state, parent, *name))
        }
        Op::Forget { pick, all } => {
            forget(live, *pick, *all);
            Ok(Stamps::new())
        }
        Op::Remove {
            parent,
            name,
            directory,
        } => {
            let parent = pick_full(&live.state, *parent);
            let name = pick_name(&live.state, parent, *name);
            // Mostly what fits, so that things do go.
            let directory = match live.state.get(parent, &name) {
                Some(ino) if !name.ends_with(b"a") => live.state.is_directory(ino),
                _ => *directory,
            };
            let errors = live.state.remove_errors(parent, &name, directory);
            let result = if directory {
                live.view().rmdir(Ino(parent), &name)
            } else {
                live.view().unlink(Ino(parent), &name)
            };
            let done = answer(result, &errors)?;
            Ok(done.map_or_else(Stamps::new, |()| live.state.remove(parent, &name)))
        }
        Op::Rename { from, to, flags } => rename(live, *from, *to, *flags, life, made),
        Op::Link { pick, parent, name } => {
            let ino = pick_file(&live.state, *pick);
            let parent = pick_directory(&live.state, *parent);
            let name = pick_name(&live.state, parent, *name);
            let errors = live.state.link_errors(ino, parent, &name);
            match answer(live.view().link(Ino(ino), Ino(parent), &name), &errors)? {
                None => Ok(Stamps::new()),
                Some(entry) => {
                    ensure!(entry.ino.0 == ino, "links inode {}", entry.ino);
                    live.referenced(ino);
                    Ok(live.state.link(ino, parent, &name, life))
                }
            }
        }
        Op::List {
            parent,
            count,
            plus,
        } => list(live, *parent, usize::from(*count), *plus),
        Op::SetAttr { .. } => set_attributes(live, op),
        Op::SetXattr { .. } | Op::RemoveXattr { .. } => xattr(live, op),
        Op::Open { pick, write } => {
            let ino = pick_file(&live.state, *pick);
            let node = live.state.nodes.get(&ino);
            let errors = node.map_or(vec![libc::ESTALE], |n| compare::open_errors(n.kind));
            let mode = open_mode(*write);
            if answer(live.view().open(Ino(ino), mode), &errors)?.is_some() {
                live.opens.push((ino, *write));
            }
            Ok(Stamps::new())
        }
        Op::Release { number } => {
            if !live.opens.is_empty() {
                let at = usize::from(*number) % live.opens.len();
                let (ino, write) = live.opens.swap_remove(at);
                live.view().release(Ino(ino), open_mode(write));
            }
            Ok(Stamps::new())
        }
        Op::Sync { file } => {
            let result = match file {
                Some(pick) => live.view().fsync(Ino(pick_file(&live.state, *pick % 4000))),
                None => live.view().sync(),
            };
            result.map_err(|error| error.to_string())?;
            Ok(Stamps::new())
        }
        _ => super::contents::operate(live, op),
    }
}

fn make(live: &mut Live, op: &Op, life: u64, made: &mut Vec<u64>) -> Result<Stamps, String> {
    let Op::Make {
        parent,
        name,
        kind,
        perm,
        umask,
        caller,
        target,
        open,
    } = op
    else {
        unreachable!()
    };
    let parent = pick_directory(&live.state, *parent);
    let name = pick_name(&live.state, parent, *name);
    let target = match kind {
        FileKind::Symlink => op::target(*target),
        _ => Vec::new(),
    };
    let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let new = NewFile {
        caller: *caller,
        kind: *kind,
        perm: *perm,
        umask: *umask,
        rdev: if device { 0x0010_0203 } else { 0 },
        target: &target,
    };
    let node = NewNode {
        kind: new.kind,
        perm: new.perm,
        umask: new.umask,
        rdev: new.rdev,
        target: &target,
    };
    let errors = live.state.make_errors(parent, &name, &new);
    let open = open.filter(|_| *kind == FileKind::File);
    let result = match open {
        Some(write) => {
            let mode = open_mode(write);
            live.view().create(*caller, Ino(parent), &name, node, mode)
        }
        None => live.view().make(*caller, Ino(parent), &name, node),
    };
    let Some(entry) = answer(result, &errors)? else {
        return Ok(Stamps::new());
    };
    let ino = entry.ino.0;
    made.push(ino);
    live.referenced(ino);
    if let Some(write) = open {
        live.opens.push((ino, write));
    }
    Ok(live.state.make(parent, &name, ino, life, &new))
}

fn lookup(live: &mut Live, parent: u64, name: &[u8]) -> Result<Stamps, String> {
    let expected = match name {
        b"." => Some(parent),
        b".." if live.state.is_directory(parent) => Some(live.state.parent(parent)),
        _ => live.state.get(parent, name),
    };
    let mut errors = live.state.directory_errors(parent);
    if !matches!(name, b"." | b"..") {
        errors.extend(super::tree::name_errors(name));
    }
    // The parent of a removed directory may be gone too.
    let gone = expected.is_some_and(|ino| !live.state.nodes.contains_key(&ino));
    if gone {
        return Ok(Stamps::new());
    }
    if let Some(found) = answer(live.view().lookup(Ino(parent), name), &errors)? {
        let found = found.map(|entry| entry.ino.0);
        ensure!(found == expected, "finds {found:?}, not {expected:?}");
        if let Some(ino) = found {
            live.referenced(ino);
        }
    }
    Ok(Stamps::new())
}

fn forget(live: &mut Live, pick: Pick, all: bool) {
    if live.refs.is_empty() {
        return;
    }
    let at = usize::from(pick) % live.refs.len();
    let (&ino, &count) = live.refs.iter().nth(at).unwrap();
    let returned = if all { count } else { 1 };
    if returned == count {
        live.refs.remove(&ino);
    } else {
        live.refs.insert(ino, count - returned);
    }
    live.view().forget(Ino(ino), returned);
}

fn rename(
    live: &mut Live,
    from: (Pick, NamePick),
    to: (Pick, NamePick),
    flags: RenameFlags,
    life: u64,
    made: &mut Vec<u64>,
) -> Result<Stamps, String> {
    let from_parent = pick_full(&live.state, from.0);
    let to_parent = pick_directory(&live.state, to.0);
    let from_name = pick_name(&live.state, from_parent, from.1);
    let to_name = pick_name(&live.state, to_parent, to.1);
    let (from, to) = ((from_parent, &from_name[..]), (to_parent, &to_name[..]));
    let errors = live.state.rename_errors(from, to, flags);
    let engine = (Ino(from.0), from.1);
    let result = live.view().rename(engine, (Ino(to.0), to.1), flags);
    if answer(result, &errors)?.is_none() {
        return Ok(Stamps::new());
    }
    let same = live.state.get(from.0, from.1) == live.state.get(to.0, to.1);
    let mut whiteout = None;
    if flags.whiteout && !same {
        let left = live.view().lookup(engine.0, engine.1);
        let left = left.map_err(|error| error.to_string())?;
        let left = left.ok_or("no whiteout was left")?;
        live.view().forget(left.ino, 1);
        made.push(left.ino.0);
        whiteout = Some(left.ino.0);
    }
    Ok(live.state.rename(from, to, flags.exchange, whiteout, life))
}

/// Lists a part of a directory. Names that stay are listed once, whatever happens meanwhile.
fn list(live: &mut Live, parent: Pick, count: usize, plus: bool) -> Result<Stamps, String> {
    let current = live.listing.take();
    let current = current.filter(|l| live.state.is_directory(l.directory));
    let mut listing = match current {
        Some(listing) => listing,
        None => {
            let directory = pick_full(&live.state, parent);
            let errors = live.state.directory_errors(directory);
            if !errors.is_empty() {
                let result = live.view().readdir(Ino(directory), 0, plus, &mut |_| true);
                answer(result, &errors)?;
                return Ok(Stamps::new());
            }
            let entries = live.state.entries(directory).iter();
            Listing {
                directory,
                cookie: 0,
                from: entries
                    .map(|(name, named)| (name.clone(), named.life))
                    .collect(),
                seen: Vec::new(),
            }
        }
    };
    let mut part = Vec::new();
    let mut full = false;
    let view = live.view().clone();
    view.readdir(Ino(listing.directory), listing.cookie, plus, &mut |entry| {
        full = part.len() == count;
        if !full {
            let attr = entry.attr.map(|attr| attr.kind);
            part.push((
                entry.name.to_vec(),
                entry.ino.0,
                entry.kind,
                attr,
                entry.cookie,
            ));
        }
        !full
    })
    .map_err(|error| format!("readdir: {error}"))?;
    for (name, ino, kind, attr, cookie) in part {
        ensure!(cookie > listing.cookie, "cookie {cookie} does not ascend");
        listing.cookie = cookie;
        ensure!(
            attr.is_none_or(|attr| attr == kind),
            "{attr:?} of a {kind:?}"
        );
        if matches!(&name[..], b"." | b"..") {
            continue;
        }
        ensure!(
            attr.is_some() == plus,
            "attributes of {}",
            name.escape_ascii()
        );
        let named = live.state.entries(listing.directory).get(&name);
        let named = named.ok_or_else(|| format!("{} is listed", name.escape_ascii()))?;
        ensure!(
            named.ino == ino,
            "{} is listed as {ino}",
            name.escape_ascii()
        );
        let seen = (name, named.life);
        ensure!(!listing.seen.contains(&seen), "{seen:?} is listed twice");
        listing.seen.push(seen);
        if plus {
            live.referenced(ino);
        }
    }
    if full {
        live.listing = Some(listing);
        return Ok(Stamps::new());
    }
    let entries = live.state.entries(listing.directory);
    for (name, life) in listing.from {
        let stayed = entries.get(&name).is_some_and(|named| named.life == life);
        let seen = listing.seen.contains(&(name.clone(), life));
        ensure!(seen || !stayed, "{} is not listed", name.escape_ascii());
    }
    Ok(Stamps::new())
}

fn set_attributes(live: &mut Live, op: &Op) -> Result<Stamps, String> {
    let Op::SetAttr {
        pick,
        caller,
        perm,
        uid,
        gid,
        atime,
        mtime,
    } = op
    else {
        unreachable!()
    };
    let ino = pick_any(&live.state, *pick);
    let errors = live.state.stale(ino);
    // The kernel does not change the mode of a symbolic link.
    let symlink = errors.is_empty() && live.state.node(ino).kind == FileKind::Symlink;
    let perm = perm.filter(|_| !symlink);
    let set_time = |time: Time| match time {
        Time::Now => SetTime::Now,
        Time::At(time) => SetTime::At(time),
    };
    let set = SetAttr {
        perm,
        uid: *uid,
        gid: *gid,
        atime: atime.map(set_time),
        mtime: mtime.map(set_time),
        ..SetAttr::default()
    };
    let mut stamps = Stamps::new();
    let Some(attr) = answer(live.view().setattr(*caller, Ino(ino), set), &errors)? else {
        return Ok(stamps);
    };
    let directory = live.state.is_directory(ino);
    if let Some(perm) = perm {
        live.state.chmod(ino, perm);
    }
    let node = live.state.edit(ino);
    node.uid = uid.unwrap_or(node.uid);
    node.gid = gid.unwrap_or(node.gid);
    let mut touched = Touched {
        ctime: true,
        ..Touched::default()
    };
    for (time, stamped, kept) in [
        (atime, &mut touched.atime, &mut node.atime),
        (mtime, &mut touched.mtime, &mut node.mtime),
    ] {
        match time {
            Some(Time::Now) => *stamped = true,
            Some(Time::At(time)) => *kept = *time,
            None => {}
        }
    }
    if (uid.is_some() || gid.is_some()) && !directory && perm.is_none() {
        live.state.kill_set_id(ino);
    }
    ensure!(
        attr.perm == live.state.node(ino).perm,
        "mode {:o}",
        attr.perm
    );
    stamps.insert(ino, touched);
    Ok(stamps)
}

fn xattr(live: &mut Live, op: &Op) -> Result<Stamps, String> {
    match op {
        Op::SetXattr {
            pick,
            caller,
            name,
            shape,
            mode,
        } => {
            let ino = pick_any(&live.state, *pick);
            let name = op::xattr_name(*name);
            let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
            let value = match *shape {
                shape if is_acl => acl::value(shape),
                0 => vec![b'v'; 65_537],
                1 => vec![b'v'; 65_536],
                shape => pattern(shape, usize::from(shape) % 40),
            };
            let mut errors = State::xattr_name_errors(&name);
            errors.extend(live.state.stale(ino));
            if value.len() > 65_536 {
                errors.extend([libc::EINVAL, libc::E2BIG]);
            }
            if is_acl && !acl::is_valid(&value) {
                errors.push(libc::EINVAL);
            }
            if let Some(node) = live.state.nodes.get(&ino) {
                if node.kind == FileKind::Symlink && is_acl {
                    return Ok(Stamps::new());
                }
                if name == acl::DEFAULT && node.kind != FileKind::Directory {
                    errors.extend([libc::EPERM, libc::EACCES]);
                }
                match (mode, node.xattrs.contains_key(&name)) {
                    (XattrMode::Create, true) => errors.push(libc::EEXIST),
                    (XattrMode::Replace, false) => errors.push(libc::ENODATA),
                    _ => {}
                }
            }
            let result = live
                .view()
                .setxattr(*caller, Ino(ino), &name, &value, *mode);
            let done = answer(result, &errors)?;
            Ok(done.map_or_else(Stamps::new, |()| {
                live.state.set_xattr(*caller, ino, &name, &value)
            }))
        }
        Op::RemoveXattr { pick, caller, name } => {
            let ino = pick_any(&live.state, *pick);
            let name = op::xattr_name(*name);
            let mut errors = State::xattr_name_errors(&name);
            errors.extend(live.state.stale(ino));
            let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
            let nodes = &live.state.nodes;
            let has = nodes
                .get(&ino)
                .is_some_and(|n| n.xattrs.contains_key(&name));
            if errors.is_empty() && !has && !is_acl {
                errors.push(libc::ENODATA);
            }
            let result = live.view().removexattr(*caller, Ino(ino), &name);
            let done = answer(result, &errors)?;
            Ok(done.map_or_else(Stamps::new, |()| {
                live.state.remove_xattr(*caller, ino, &name)
            }))
        }
        _ => unreachable!(),
    }
}
