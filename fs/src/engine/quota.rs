//! What a workspace holds and how much it may: its *quota*.
//!
//! What counts is what is visible in the live layer, as `layer.bytes` and `layer.inodes` say
//! (docs/format.md): data that a workspace shares with its snapshots or with forks counts once in each that
//! shows it, whoever stores it. A file counts by the blocks that it takes; one that began in a directory of the
//! host by those beyond what it had there. One that was removed counts as
//! long as somebody has it open, which no total says.
//!
//! Invariant: `bytes` and `inodes` are what the catalog says; what mutations under way may add to it is
//! in `pending`, so that several of them together do not pass the limit.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::node::{Contents, NodeState};
use super::{Mutation, View};
use crate::change::{Change, InodeRow, Row};
use crate::contents::{
    BLOCK, ContentsError, ExtentMap, FileIo, INLINE_MAX, Source, WHOLE_COPY_MAX, raw,
};
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId};
use crate::lock::{Mutex, rank};

/// Limits of a workspace; none: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of blocks.
    pub bytes: Option<u64>,
    /// Inodes: files of any kind, directories included.
    pub inodes: Option<u64>,
}

/// One of the two things that are counted.
#[derive(Debug, Default)]
struct Account {
    used: AtomicI64,
    /// What was removed and is open still.
    unnamed: AtomicI64,
    pending: AtomicU64,
    /// `u64::MAX`: none.
    limit: AtomicU64,
}

impl Account {
    fn new() -> Self {
        Self {
            limit: AtomicU64::new(u64::MAX),
            ..Self::default()
        }
    }

    fn used(&self) -> u64 {
        let unnamed = self.unnamed().max(0);
        let used = self.used.load(Ordering::Relaxed).max(0);
        used.saturating_add(unnamed).unsigned_abs()
    }

    fn unnamed(&self) -> i64 {
        self.unnamed.load(Ordering::Relaxed)
    }

    fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != u64::MAX)
    }

    /// Says whether that much more fits; what does is pending then. What does not leaves no trace, or it
    /// would be in the way of what fits.
    fn reserve(&self, more: u64) -> bool {
        let limit = self.limit();
        let fits = |pending: u64| {
            let sum = pending.checked_add(more)?;
            let all = self.used().saturating_add(sum);
            limit.is_none_or(|limit| all <= limit).then_some(sum)
        };
        self.pending
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    fn release(&self, reserved: u64) {
        self.pending.fetch_sub(reserved, Ordering::Relaxed);
    }
}

/// What a live layer holds, and what it may.
#[derive(Debug)]
pub(super) struct Usage {
    bytes: Account,
    inodes: Account,
    /// What each inode counts for that was removed and is open still.
    unnamed: Mutex<{ rank::LEAF }, HashMap<Ino, (i64, i64)>>,
}

/// Inodes, each with what it counts for though it has no name: bytes and inodes; none if it has a name, or is
/// gone.
pub(super) type Unnamed = Vec<(Ino, Option<(i64, i64)>)>;

/// What a mutation has reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserved {
    bytes: u64,
    inodes: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            bytes: Account::new(),
            inodes: Account::new(),
            unnamed: Mutex::default(),
        }
    }
}

impl Usage {
    /// The layer's totals are these from now on.
    pub(super) fn start(&self, (bytes, inodes): (i64, i64)) {
        self.unnamed.lock().clear();
        for (account, used) in [(&self.bytes, bytes), (&self.inodes, inodes)] {
            account.used.store(used, Ordering::Relaxed);
            account.unnamed.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn set_quota(&self, quota: Quota) {
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        self.bytes
            .limit
            .store(limit(quota.bytes), Ordering::Relaxed);
        self.inodes
            .limit
            .store(limit(quota.inodes), Ordering::Relaxed);
    }

    /// The layer's totals have grown, or shrunk, by so much.
    pub(super) fn add(&self, (bytes, inodes): (i64, i64)) {
        self.bytes.used.fetch_add(bytes, Ordering::Relaxed);
        self.inodes.used.fetch_add(inodes, Ordering::Relaxed);
    }

    /// Follows what a committed change did to the totals of a layer.
    pub(super) fn follow(&self, change: &Change, of: LayerId) {
        for row in change.rows() {
            if let Row::AddUsage {
                layer,
                bytes,
                inodes,
            } = row
                && *layer == of
            {
                self.add((*bytes, *inodes));
            }
        }
    }

    /// What these inodes count for that have no name; none: they have one, or are gone.
    pub(super) fn note_unnamed(&self, inodes: Unnamed) {
        for (ino, weight) in inodes {
            let mut unnamed = self.unnamed.lock();
            let before = match weight {
                Some(weight) => unnamed.insert(ino, weight),
                None => unnamed.remove(&ino),
            };
            let (old, new) = (before.unwrap_or_default(), weight.unwrap_or_default());
            self.bytes
                .unnamed
                .fetch_add(new.0 - old.0, Ordering::Relaxed);
            self.inodes
                .unnamed
                .fetch_add(new.1 - old.1, Ordering::Relaxed);
        }
    }

    /// Nobody has an inode open any more: it is reclaimed if it has no name.
    pub(super) fn forget(&self, ino: Ino) {
        self.note_unnamed(vec![(ino, None)]);
    }

    /// Whether something counts that may go by itself: a removed file that is just about to be closed,
    /// what others have reserved and do not need.
    fn may_shrink(&self) -> bool {
        let may = |account: &Account| {
            account.unnamed() > 0 || account.pending.load(Ordering::Relaxed) > 0
        };
        may(&self.bytes) || may(&self.inodes)
    }

    /// Whether an inode counts though it has no name.
    pub(super) fn is_unnamed(&self, ino: Ino) -> bool {
        self.unnamed.lock().contains_key(&ino)
    }

    /// What the catalog should say of the layer's totals.
    #[cfg(debug_assertions)]
    pub(super) fn totals(&self) -> (i64, i64) {
        let used = |account: &Account| account.used.load(Ordering::Relaxed);
        (used(&self.bytes), used(&self.inodes))
    }

    /// Limit and use of bytes, where there is a limit.
    pub(super) fn bytes(&self) -> Option<(u64, u64)> {
        Some((self.bytes.limit()?, self.bytes.used()))
    }

    /// Limit and use of inodes, where there is a limit.
    pub(super) fn inodes(&self) -> Option<(u64, u64)> {
        Some((self.inodes.limit()?, self.inodes.used()))
    }

    fn reserve(&self, bytes: u64, inodes: u64) -> Result<Reserved, OpError> {
        let exceeded = |what, account: &Account| OpError::Quota {
            what,
            used: account.used(),
            limit: account.limit().unwrap_or(u64::MAX),
        };
        if bytes > 0 && !self.bytes.reserve(bytes) {
            return Err(exceeded("bytes", &self.bytes));
        }
        if inodes > 0 && !self.inodes.reserve(inodes) {
            self.bytes.release(bytes);
            return Err(exceeded("inodes", &self.inodes));
        }
        Ok(Reserved { bytes, inodes })
    }

    pub(super) fn release(&self, reserved: Reserved) {
        if reserved.bytes > 0 {
            self.bytes.release(reserved.bytes);
        }
        if reserved.inodes > 0 {
            self.inodes.release(reserved.inodes);
        }
    }
}

/// How long what was removed is waited for, that is just about to go: in so many pauses.
const PAUSES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

impl View {
    /// Does something that may need room. The kernel tells a moment later that nobody has a removed file
    /// open any more, and what removed it may go on writing at once.
    pub(super) fn with_room<T>(&self, act: impl Fn() -> Result<T, OpError>) -> Result<T, OpError> {
        for _ in 0..PAUSES {
            // Asked before: it may have gone by the time of the refusal.
            let may_shrink = self.usage.may_shrink();
            match act() {
                Err(OpError::Quota { .. }) if may_shrink || self.usage.may_shrink() => {
                    thread::sleep(PAUSE)
                }
                done => return done,
            }
        }
        act()
    }
}

impl Mutation<'_> {
    /// Sees to it that there is room for something that is to be added: bytes on the disk, bytes and inodes
    /// of the workspace.
    ///
    /// # Errors
    /// [`OpError::NoSpace`], [`OpError::Quota`].
    pub(super) fn room(&self, disk: u64, bytes: u64, inodes: u64) -> Result<(), OpError> {
        if disk > 0 {
            self.view.core.room.take(disk)?;
        }
        if bytes > 0 || inodes > 0 {
            let more = self.view.usage.reserve(bytes, inodes)?;
            let mut reserved = self.reserved.get();
            reserved.bytes += more.bytes;
            reserved.inodes += more.inodes;
            self.reserved.set(reserved);
        }
        Ok(())
    }

    /// Sees to it that there is room to write to a part of a file, whose contents are loaded.
    ///
    /// # Errors
    /// [`OpError::NoSpace`], [`OpError::Quota`]; or what is there cannot be looked at.
    pub(super) fn room_to_write(
        &self,
        ino: Ino,
        state: &NodeState,
        row: &InodeRow,
        part: Range<u64>,
    ) -> Result<(), OpError> {
        let most = whole_pages(&part);
        let most = most.end.saturating_sub(most.start);
        match &state.contents {
            Some(Contents::Extents(map)) => {
                // Blocks, or a file, of an older layer are copied first.
                let copied = match map.single_object() {
                    Some((layer, _)) if layer == self.layer => 0,
                    _ => WHOLE_COPY_MAX,
                };
                let refused = match self.room(most.saturating_add(copied), most, 0) {
                    Err(refused @ (OpError::NoSpace { .. } | OpError::Quota { .. })) => refused,
                    done => return done,
                };
                // What is there already takes no more room.
                let objects = &self.view.core.objects;
                let (disk, seen) = growth(&Source { objects, map }, self.layer, &part)?;
                let reserved = self.reserved_blocks(map)?;
                let credit = reserved.saturating_add(self.host_credit(ino, row)?);
                let growth = (disk.saturating_sub(reserved), seen.saturating_sub(credit));
                if growth == (most.saturating_add(copied), most) {
                    return Err(refused);
                }
                self.room(growth.0, growth.1, 0)
            }
            small => {
                let there = match small {
                    Some(Contents::Inline(data)) => data.len() as u64,
                    _ => 0,
                };
                let size = row.attr.size.max(part.end);
                let old = row.attr.blocks.saturating_mul(512);
                let new = match size {
                    inline @ ..=INLINE_MAX => inline.div_ceil(512) * 512,
                    // What was in the catalog moves to the object.
                    _ => most.saturating_add(there.next_multiple_of(PAGE)),
                };
                let more = new.saturating_sub(old);
                self.room(more, more, 0)
            }
        }
    }

    /// Bytes that the live layer's object has on the disk and that no data was written to yet.
    fn reserved_blocks(&self, map: &ExtentMap) -> Result<u64, OpError> {
        let objects = &self.view.core.objects;
        let Some(own) = map.object_of(self.layer) else {
            return Ok(0);
        };
        let blocks = FileIo::blocks_of(objects, own)?.saturating_mul(512);
        let file = objects.write(own)?;
        let data = raw::data_in(&file, 0..u64::MAX);
        Ok(blocks.saturating_sub(data.map_err(ContentsError::object("look at", own))?))
    }

    /// Of an inode that began on the host only what it has grown by counts: how many bytes are left until
    /// it does.
    fn host_credit(&self, ino: Ino, row: &InodeRow) -> Result<u64, OpError> {
        let began = self.began(ino, row)?;
        Ok(began.saturating_sub(row.attr.blocks).saturating_mul(512))
    }
}

/// What a file's blocks on the disk are a multiple of.
const PAGE: u64 = 4096;

/// The pages that have a part of a file.
fn whole_pages(part: &Range<u64>) -> Range<u64> {
    let end = part.end.checked_next_multiple_of(PAGE);
    part.start / PAGE * PAGE..end.unwrap_or(u64::MAX)
}

/// How many bytes more a part of a file takes once it is written: on the disk, and of what is seen.
fn growth(
    source: &Source<'_>,
    layer: LayerId,
    part: &Range<u64>,
) -> Result<(u64, u64), ContentsError> {
    let pages = whole_pages(part);
    let (mut disk, mut seen) = (0_u64, 0_u64);
    for (run, segment) in source
        .map
        .runs(pages.start / BLOCK..pages.end.div_ceil(BLOCK))
    {
        let start = run.start.saturating_mul(BLOCK).max(pages.start);
        let end = run.end.saturating_mul(BLOCK).min(pages.end);
        let data = data_in(source, start..end)?;
        let holes = (end - start).saturating_sub(data);
        seen = seen.saturating_add(holes);
        disk = disk.saturating_add(match segment {
            Some(own) if own.layer == layer && own.object.is_some() => holes,
            _ => end - start,
        });
    }
    Ok((disk, seen))
}

/// Bytes of data in a part of a file.
fn data_in(source: &Source<'_>, part: Range<u64>) -> Result<u64, ContentsError> {
    let (mut at, mut data) = (part.start, 0);
    while at < part.end {
        let start = source.seek(at, part.end, false)?;
        if start >= part.end {
            break;
        }
        at = source.seek(start, part.end, true)?.min(part.end);
        data += at - start;
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_mutations_add_does_not_pass_the_limit_together() {
        let usage = Usage::default();
        usage.start((4096, 1));
        usage.set_quota(Quota {
            bytes: Some(12_288),
            inodes: Some(3),
        });
        let first = usage.reserve(4096, 1).unwrap();
        let second = usage.reserve(4096, 1).unwrap();
        assert!(usage.reserve(1, 0).is_err());
        assert!(usage.reserve(0, 1).is_err());
        usage.release(second);
        // The first is committed.
        let mut change = Change::new();
        change.push(Row::AddUsage {
            layer: LayerId(7),
            bytes: 4096,
            inodes: 1,
        });
        usage.follow(&change, LayerId(7));
        usage.follow(&change, LayerId(8));
        usage.release(first);
        assert_eq!(usage.bytes(), Some((12_288, 8192)));
        let refused = usage.reserve(4097, 0);
        let told = matches!(
            refused,
            Err(OpError::Quota {
                what: "bytes",
                used: 8192,
                limit: 12_288
            })
        );
        assert!(told, "{refused:?}");
        let reserved = usage.reserve(4096, 1).unwrap();
        usage.release(reserved);
        // Of what fails for its inodes no bytes stay reserved.
        assert!(usage.reserve(4096, 2).is_err());
        usage.reserve(4096, 1).unwrap();
    }

    #[test]
    fn without_a_limit_anything_goes_and_one_that_is_set_later_counts_what_is_there() {
        let usage = Usage::default();
        usage.start((-5, 0));
        let reserved = usage.reserve(1 << 50, 1 << 50).unwrap();
        assert_eq!((usage.bytes(), usage.inodes()), (None, None));
        usage.set_quota(Quota {
            bytes: Some(10),
            inodes: None,
        });
        usage.release(reserved);
        assert_eq!(usage.bytes(), Some((10, 0)));
        usage.reserve(10, 1).unwrap();
        assert!(usage.reserve(1, 1).is_err());
    }
}
