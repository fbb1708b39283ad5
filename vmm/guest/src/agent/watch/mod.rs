//! Watching directories.
//!
//! One inotify instance serves all channels: the kernel allows few of them for all sandboxes together.
//! What it tells is queued for each channel, bounded; a worker looks at what is there, as the user, and
//! the events go out in their order.

mod places;
mod serve;
mod tree;
mod watching;

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, init};
use rustix::io::Errno;

use super::poll::{Poller, Source, Token};
use places::Place;
use tree::Tree;

pub use watching::Watching;

/// Events that are taken from the kernel in one turn, about.
const TURN: usize = 4096;

/// Bytes for events of the kernel: many, and at least one with the longest name.
const BUFFER: usize = 16 * 1024;

/// The inotify instance, if anybody watches.
#[derive(Debug, Default)]
pub struct Watches {
    current: Option<(Source, Arc<Tree>)>,
    /// The last one. A worker may be at it still, and as long as it is there it is used again: who
    /// watches and stops watching in quick succession needs no more than one.
    last: Weak<Tree>,
}

/// What the kernel said.
struct Heard {
    /// Of the directory of that number.
    number: i32,
    /// About what is in it, or about the directory itself.
    name: Option<OsString>,
    what: ReadFlags,
}

impl Watches {
    fn tree(&mut self, poller: &Rc<Poller>) -> io::Result<Arc<Tree>> {
        if let Some((_, tree)) = &self.current {
            return Ok(Arc::clone(tree));
        }
        let tree = match self.last.upgrade() {
            Some(tree) => tree,
            None => Arc::new(Tree::new(init(
                CreateFlags::CLOEXEC | CreateFlags::NONBLOCK,
            )?)),
        };
        let mut source = Source::new(poller, tree.descriptor()?, Token::Watches);
        source.want(true, false)?;
        self.last = Arc::downgrade(&tree);
        self.current = Some((source, Arc::clone(&tree)));
        Ok(tree)
    }

    /// A channel does not watch any more.
    fn forget(&mut self, channel: u64, others: bool) {
        self.forget_below(channel, Path::new(""));
        if !others {
            self.current = None;
        }
    }

    /// A channel does not watch a directory any more, nor what is below it.
    fn forget_below(&self, channel: u64, below: &Path) {
        if let Some((_, tree)) = &self.current {
            tree.forget(channel, below);
        }
    }

    /// Where that was, for each channel that watches there. To be asked only once everything that was
    /// heard before is noted: names change.
    fn places(&self, heard: &Heard) -> Vec<Place> {
        self.current.as_ref().map_or_else(Vec::new, |(_, tree)| {
            tree.places(heard.number, heard.what.contains(ReadFlags::IGNORED))
        })
    }

    /// What the kernel says.
    fn heard(&self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let Some((source, _)) = &self.current else {
            return heard;
        };
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(source, &mut buffer);
        while heard.len() < TURN || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => heard.push(Heard {
                    number: event.wd(),
                    name: event
                        .file_name()
                        .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                    what: event.events(),
                }),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => {
                    super::complain("hear of changes", &error);
                    break;
                }
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_instance_as_long_as_anybody_is_at_it() {
        let poller = Poller::new().unwrap();
        let mut watches = Watches::default();
        let of_a_worker = watches.tree(&poller).unwrap();
        watches.forget(1, true);
        assert!(watches.current.is_some());
        watches.forget(1, false);
        assert!(watches.current.is_none());
        let again = watches.tree(&poller).unwrap();
        assert!(Arc::ptr_eq(&of_a_worker, &again));
        drop((of_a_worker, again));
        watches.forget(1, false);
        assert!(watches.last.upgrade().is_none());
        watches.tree(&poller).unwrap();
    }
}
