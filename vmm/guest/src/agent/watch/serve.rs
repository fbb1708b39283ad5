//! Requests to watch, and what comes of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use floe_guest::message::{Event, Failure, FileRef, Outcome, WatchEvent, WatchKind};
use rustix::fs::inotify::ReadFlags;

use super::places::Place;
use super::tree::Scope;
use super::watching::{Adding, MAX_QUEUED, Watching, look_at};
use crate::agent::Agent;
use crate::agent::channel::Work;
use crate::agent::failure::failed;
use crate::agent::files::path::resolve;
use crate::agent::pool::Done;
use crate::agent::users::{Database, acting_as};

impl Agent {
    /// Has a directory watched for the channel.
    pub(crate) fn watch(
        &mut self,
        number: u64,
        file: &FileRef,
        recursive: bool,
    ) -> Result<(), Failure> {
        let user = Database::read().user(file.user.as_deref())?;
        let root = resolve(&file.path, &user)?;
        if let Some(channel) = self.channels.get_mut(number) {
            channel.work = Work::Watching(Watching::new(root, user, recursive));
        }
        self.add_dirs(number)
    }

    fn watching(&mut self, number: u64) -> Option<&mut Watching> {
        match &mut self.channels.get_mut(number)?.work {
            Work::Watching(watching) => Some(watching),
            _ => None,
        }
    }

    /// Numbers of the channels that watch.
    fn all_watching(&self) -> Vec<u64> {
        let all = self.channels.all();
        all.filter_map(|(number, channel)| {
            matches!(channel.work, Work::Watching(_)).then_some(number)
        })
        .collect()
    }

    /// Has a worker watch what the channel is to watch and does not yet.
    fn add_dirs(&mut self, number: u64) -> Result<(), Failure> {
        let tree = self
            .watches
            .tree(&self.poller)
            .map_err(|error| failed("watch directories", error))?;
        let Some(watching) = self.watching(number) else {
            return Ok(());
        };
        let Some(adding) = watching.next_adding() else {
            return Ok(());
        };
        let (root, user) = (watching.root.clone(), watching.user.clone());
        let recursive = watching.recursive;
        let job = move || {
            let scope = Scope {
                channel: number,
                root: &root,
                recursive,
            };
            let outcome = acting_as(&user, || match adding {
                Adding::All => tree.add_all(scope).map(|()| None),
                // One more than is ever told, so that it is told that there was more.
                Adding::Some(dirs) => tree.add_some(scope, dirs, MAX_QUEUED + 1).map(Some),
            });
            Ok(Done::Watched(outcome))
        };
        self.pool.submit(number, Box::new(job));
        Ok(())
    }

    /// Directories were added, or could not be. What was found in those that have come; `None` if all
    /// were added anew.
    pub(crate) fn watched(&mut self, number: u64, outcome: Result<Option<Vec<PathBuf>>, Failure>) {
        let Some(watching) = self.watching(number) else {
            // It ended meanwhile; what the worker has added for it goes.
            return self.forget_watch(number);
        };
        let all = matches!(outcome, Ok(None));
        let mut failed = None;
        match outcome {
            Ok(found) => watching.added(found.unwrap_or_default()),
            Err(failure) => {
                watching.added(Vec::new());
                failed = watching.failed(failure);
            }
        }
        if all && watching.begun {
            // Only now: who looks for itself because of this misses nothing that comes after.
            watching.tell("", WatchKind::Overflow);
        } else if all {
            watching.begun = true;
            if let Some(channel) = self.channels.get_mut(number) {
                channel.push(&Event::Watching);
            }
        }
        let failed = failed.map_or_else(|| self.add_dirs(number), Err);
        if let (Err(failure), Some(channel)) = (failed, self.channels.get_mut(number)) {
            channel.fail(failure);
        }
        self.channels.wake(number);
    }

    /// A channel that watched is closed.
    pub(crate) fn forget_watch(&mut self, number: u64) {
        let others = !self.all_watching().is_empty();
        self.watches.forget(number, others);
    }

    /// The kernel has something to say.
    pub(crate) fn watches_ready(&mut self) {
        for heard in self.watches.heard() {
            if heard.what.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.lost();
                continue;
            }
            for place in self.watches.places(&heard) {
                let number = place.channel;
                match &heard.name {
                    Some(name) => self.notice(place, name, heard.what),
                    None => self.notice_self(&place, heard.what),
                }
                self.channels.wake(number);
            }
        }
        for number in self.all_watching() {
            if let Err(failure) = self.add_dirs(number)
                && let Some(channel) = self.channels.get_mut(number)
            {
                channel.fail(failure);
            }
        }
    }

    /// The kernel had more to say than it keeps: directories may have come, gone and moved.
    fn lost(&mut self) {
        for number in self.all_watching() {
            if let Some(watching) = self.watching(number) {
                watching.lost();
            }
        }
    }

    fn notice(&mut self, place: Place, name: &OsString, what: ReadFlags) {
        let number = place.channel;
        let name = place.path.join(name);
        let is_dir = what.contains(ReadFlags::ISDIR);
        if is_dir && what.contains(ReadFlags::MOVED_FROM) {
            // Wherever it is now, what it says is not about this name any more.
            self.watches.forget_below(number, &name);
        }
        let appeared = what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        let kind = if appeared {
            WatchKind::Create
        } else if what.contains(ReadFlags::MODIFY) {
            WatchKind::Write
        } else if what.contains(ReadFlags::DELETE) {
            WatchKind::Remove
        } else if what.contains(ReadFlags::MOVED_FROM) {
            WatchKind::Rename
        } else if what.contains(ReadFlags::ATTRIB) {
            WatchKind::Chmod
        } else {
            return;
        };
        if let Some(watching) = self.watching(number) {
            watching.tell(&name, kind);
            if matches!(kind, WatchKind::Remove | WatchKind::Rename) {
                watching.went(&name);
            } else if is_dir && appeared {
                watching.came(name);
            }
        }
    }

    /// Something happened to a watched directory itself. Of those below the first one, the directory
    /// above tells.
    fn notice_self(&mut self, place: &Place, what: ReadFlags) {
        if place.path != Path::new("") {
            return;
        }
        let Some(watching) = self.watching(place.channel) else {
            return;
        };
        if what.contains(ReadFlags::DELETE_SELF) {
            watching.tell(".", WatchKind::Remove);
        } else if what.contains(ReadFlags::MOVE_SELF) {
            watching.tell(".", WatchKind::Rename);
        } else if what.contains(ReadFlags::ATTRIB) {
            watching.tell(".", WatchKind::Chmod);
        }
        // One that is elsewhere now is gone too: names in it lead to nothing.
        if what.intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF) {
            watching.gone = true;
        }
    }

    /// Has the next events looked at; ends when the directory is gone and all is told.
    pub(crate) fn advance_watching(&mut self, number: u64) {
        let Some(watching) = self.watching(number) else {
            return;
        };
        if watching.looking {
            return;
        }
        let events = watching.batch();
        if events.is_empty() {
            if watching.begun
                && watching.gone
                && let Some(channel) = self.channels.get_mut(number)
            {
                channel.done(Outcome::Done);
                self.channels.wake(number);
            }
            return;
        }
        watching.looking = true;
        let (root, user) = (watching.root.clone(), watching.user.clone());
        self.pool
            .submit(number, Box::new(move || look_at(&root, &user, events)));
    }

    /// Events were looked at.
    pub(crate) fn looked(&mut self, number: u64, events: Vec<WatchEvent>) {
        if let Some(watching) = self.watching(number) {
            watching.looking = false;
        }
        if let Some(channel) = self.channels.get_mut(number) {
            for event in events {
                channel.push(&Event::Changed(event));
            }
        }
        self.channels.wake(number);
    }
}
