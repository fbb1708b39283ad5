//! Listing directories.

use super::View;
use super::kernel::Holder;
use crate::attr::FileKind;
use crate::dispatch::{DirEntry, OpError};
use crate::id::Ino;

/// Cookies of the two names that no row has; every other cookie is an inode-like number, and
/// those start higher.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const _: () = assert!(DOT_DOT < Ino::FIRST.0);

/// Entries taken out of the directory under its lock at a time.
const BATCH: usize = 128;

impl View {
    pub(crate) fn do_readdir(
        &self,
        holder: Holder,
        ino: Ino,
        mut cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        let parent = {
            let mut state = self.lock(&epoch, &node)?;
            self.complete(&epoch, &node, &mut state)?;
            if ino == Ino::ROOT {
                ino
            } else {
                state.row.parent
            }
        };
        for (at, name, target) in [(DOT, &b"."[..], ino), (DOT_DOT, &b".."[..], parent)] {
            if cookie >= at {
                continue;
            }
            let attr = if plus {
                self.do_getattr(target).ok()
            } else {
                None
            };
            let kind = FileKind::Directory;
            if !sink(DirEntry {
                ino: target,
                kind,
                name,
                cookie: at,
                attr,
            }) {
                return Ok(());
            }
            cookie = at;
        }
        // Whoever was told of an entry holds a reference to it: an error later on must not hide that.
        let mut told = false;
        loop {
            // The lock is not held while attributes are read: that takes the children's locks.
            let batch = {
                let mut state = self.lock(&epoch, &node)?;
                self.complete(&epoch, &node, &mut state)?;
                let directory = state.directory.as_ref();
                directory
                    .map(|directory| directory.after(cookie, BATCH))
                    .unwrap_or_default()
            };
            let Some((_, last)) = batch.last() else {
                return Ok(());
            };
            cookie = last.cookie;
            for (name, entry) in &batch {
                let mut attr = None;
                if plus {
                    match self.referenced(holder, &epoch, entry.ino) {
                        Ok(found) => attr = Some(found.attr),
                        // Removed since the batch was taken.
                        Err(OpError::Stale(_)) => continue,
                        Err(error) if told => {
                            tracing::error!(%error, %ino, "a listing ends early");
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                    }
                }
                let taken = sink(DirEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    name,
                    cookie: entry.cookie,
                    attr,
                });
                if !taken {
                    if plus {
                        self.do_forget(holder, entry.ino, 1);
                    }
                    return Ok(());
                }
                told = true;
            }
        }
    }
}
