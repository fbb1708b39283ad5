//! One workspace's or snapshot's view, sessions and directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use floe_fs::dispatch::fuser::{FoundMount, Mount, MountError, MountOptions, mount_at};
use floe_fs::id::{SnapshotId, WorkspaceId};
use floe_fs::{MountRecord, MountTarget, View};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::session::{Meant, Session, Sessions, attached, served};
use super::watch::Event;
use super::{Mounts, Subject};
use crate::error::{ApiError, ErrorKind, shell_word};

/// How long the last unmount waits for the kernel to let go of the file system.
const END_WAIT: Duration = Duration::from_secs(2);
/// The same after a lazy unmount, where programs may keep it for ever.
const LAZY_END_WAIT: Duration = Duration::from_millis(200);

/// A target as the key of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Workspace(WorkspaceId),
    Snapshot(SnapshotId),
}

impl From<&MountTarget> for Key {
    fn from(target: &MountTarget) -> Self {
        match target {
            MountTarget::Workspace(id) => Self::Workspace(*id),
            MountTarget::Snapshot(id) => Self::Snapshot(id.clone()),
        }
    }
}

/// A directory that it is mounted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    /// Whether only to look at.
    pub(super) read_only: bool,
}

impl Place {
    /// What a later daemon needs to know of it.
    pub(super) fn record(&self, target: &MountTarget) -> MountRecord {
        MountRecord {
            target: target.clone(),
            dir: self.dir.clone(),
            read_only: self.read_only,
        }
    }
}

/// See the module above.
pub(super) struct Slot {
    pub(super) target: MountTarget,
    /// The directories it is mounted on, oldest first.
    places: Mutex<Vec<Place>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    view: Option<Arc<View>>,
    /// Of those to work in there is at most one: a view's references belong to one kernel connection.
    sessions: Sessions,
    /// Whether a virtual machine has it, and nobody else works in it.
    is_lent: bool,
    /// How many are changing it from outside.
    holders: usize,
    /// Whether one of them has something of a sandbox's come in.
    is_distrusted: bool,
}

impl Slot {
    pub(super) fn new(target: MountTarget) -> Self {
        Self {
            target,
            places: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Whether nothing is open or mounted.
    pub(super) fn is_empty(&self) -> bool {
        // A slot in use by another thread is not empty; waiting for it here could dead-lock.
        self.state
            .try_lock()
            .is_some_and(|state| state.view.is_none())
            && self.places.lock().is_empty()
    }

    /// The directories it is mounted on, oldest first.
    pub(super) fn places(&self) -> Vec<Place> {
        self.places.lock().clone()
    }

    /// Whether it is mounted on a directory.
    pub(super) fn is_on(&self, dir: &Path) -> bool {
        self.places.lock().iter().any(|place| place.dir == dir)
    }

    /// The directories it is mounted on.
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        self.places().into_iter().map(|place| place.dir).collect()
    }

    /// Mounts on a directory that the caller prepared and reserved.
    pub(super) fn mount(
        &self,
        mounts: &Mounts,
        subject: &Subject,
        dir: &Path,
    ) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        if state.is_lent && !subject.is_onlooker() {
            let error = lent(subject);
            return Err(error.hint(format!(
                "it can be looked at meanwhile: `floe mount --read-only {}`",
                subject.label()
            )));
        }
        let place = Place {
            dir: dir.to_owned(),
            read_only: subject.is_onlooker(),
        };
        let mine = self.places.lock().contains(&place);
        let there = mount_at(dir).map_err(|error| {
            ApiError::new(ErrorKind::Failed, "cannot read the table of mounts").caused_by(&error)
        })?;
        if let Some(there) = there.filter(FoundMount::is_floe) {
            if mine {
                return Ok(());
            }
            let there = there.source;
            let what = format!(
                "'{}' is a mount point of Floe already ({there})",
                dir.display()
            );
            return Err(ApiError::new(ErrorKind::Conflict, what).hint(format!(
                "choose another directory, or unmount it with `floe umount {}`",
                shell_word(&dir.to_string_lossy())
            )));
        }
        if mine && state.sessions.on(dir).is_some() {
            return Err(MountError::covered(dir).into());
        }
        state.settle(mounts, Meant::by(subject), END_WAIT);
        match state.sessions.of(subject) {
            Some(session) => bind(session, subject, dir)?,
            None => {
                let session = state.open(mounts, subject, dir);
                if session.is_err() {
                    state.close_if_unused(mounts);
                }
                *state.sessions.of(subject) = Some(session?);
            }
        }
        let mut places = self.places.lock();
        // It may be there still if somebody unmounted it by hand a moment ago.
        places.retain(|at| at.dir != dir);
        places.push(place.clone());
        drop(places);
        // A sandbox's goes with the sandbox.
        if subject.is_lasting() {
            mounts.record(&self.target, &place);
        }
        info!(dir = %dir.display(), what = subject.label(), "mounted");
        Ok(())
    }

    /// Opens it for a virtual machine, which has it for itself until [`Slot::take_back`].
    pub(super) fn lend(&self, mounts: &Mounts, subject: &Subject) -> Result<Arc<View>, ApiError> {
        let mut state = self.state.lock();
        state.settle(mounts, Meant::WORKING, END_WAIT);
        if state.is_lent {
            return Err(lent(subject));
        }
        if state.holders > 0 {
            let what = format!("'{}' is being changed", subject.label());
            return Err(ApiError::new(ErrorKind::Conflict, what).hint("try again in a moment"));
        }
        if let Some(session) = state.sessions.working() {
            let on = session.mount.directories();
            let on = on
                .first()
                .map_or("somewhere".to_owned(), |dir| format!("'{}'", dir.display()));
            let what = format!("'{}' is mounted on {on}", subject.label());
            return Err(ApiError::new(ErrorKind::Conflict, what).hint(format!(
                "a virtual machine needs it for itself; unmount it with `floe umount {}`",
                subject.label()
            )));
        }
        let view = state.view(mounts, subject);
        let view = view.and_then(|view| {
            // Before the guest can write anything.
            if let Subject::Workspace(info) | Subject::Sandbox(info, _) = subject {
                mounts.store.distrust(&info.name)?;
            }
            Ok(view)
        });
        match view {
            Ok(view) => {
                state.is_lent = true;
                Ok(view)
            }
            Err(error) => {
                state.close_if_unused(mounts);
                Err(error)
            }
        }
    }

    /// Keeps it from virtual machines until [`Slot::let_go`].
    pub(super) fn hold(&self, subject: &Subject) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        if state.is_lent {
            return Err(lent(subject));
        }
        state.holders += 1;
        Ok(())
    }

    /// Whoever held it is done.
    pub(super) fn let_go(&self) {
        let mut state = self.state.lock();
        state.holders -= 1;
        // The catalog says it by now.
        state.is_distrusted &= state.holders > 0;
    }

    /// The virtual machine does not need it any more.
    pub(super) fn take_back(&self, mounts: &Mounts) {
        let mut state = self.state.lock();
        state.is_lent = false;
        state.close_if_unused(mounts);
    }

    /// Unmounts one of its directories.
    pub(super) fn umount(&self, mounts: &Mounts, dir: &Path, lazy: bool) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        let meant = state.sessions.meant_by(dir);
        self.umount_locked(&state, mounts, dir, lazy)?;
        state.settle(mounts, meant, if lazy { LAZY_END_WAIT } else { END_WAIT });
        drop(state);
        mounts.tidy(&[dir.to_owned()]);
        Ok(())
    }

    /// Unmounts all of its directories, also those that somebody bound by hand; with `looking` also those
    /// that are only to look at. What can be unmounted is, even if another directory is busy; the first error
    /// is returned.
    pub(super) fn umount_all(
        &self,
        mounts: &Mounts,
        looking: bool,
        lazy: bool,
    ) -> Result<Vec<PathBuf>, ApiError> {
        let mut state = self.state.lock();
        let mut places = self.places();
        places.retain(|place| looking || !place.read_only);
        let mut dirs: Vec<PathBuf> = places.into_iter().map(|place| place.dir).collect();
        let bound = match looking {
            true => state.sessions.directories(),
            false => state
                .sessions
                .working()
                .map(|session| session.mount.directories())
                .unwrap_or_default(),
        };
        for dir in bound {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        let mut meant = state.sessions.mounted();
        meant.looking &= looking;
        let mut freed = Vec::new();
        let mut failed = None;
        for dir in dirs.into_iter().rev() {
            match self.umount_locked(&state, mounts, &dir, lazy) {
                Ok(()) => freed.push(dir),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        state.settle(mounts, meant, if lazy { LAZY_END_WAIT } else { END_WAIT });
        drop(state);
        mounts.tidy(&freed);
        match failed {
            Some(error) => Err(error),
            None => Ok(freed),
        }
    }

    fn umount_locked(
        &self,
        state: &State,
        mounts: &Mounts,
        dir: &Path,
        lazy: bool,
    ) -> Result<(), ApiError> {
        // One that is nowhere any more says why it is not there.
        let session = state.sessions.on(dir);
        if let Some(session) = session.or_else(|| state.sessions.iter().next()) {
            session.mount.unmount(dir, lazy)?;
        }
        self.forget(mounts, dir);
        Ok(())
    }

    fn forget(&self, mounts: &Mounts, dir: &Path) {
        let mut places = self.places.lock();
        let before = places.len();
        places.retain(|at| at.dir != dir);
        let forgotten = places.len() < before;
        drop(places);
        if forgotten {
            mounts.forget(&self.target, dir);
        }
    }

    /// The kernel's connection of that session has ended.
    pub(super) fn session_ended(&self, mounts: &Mounts, number: u64) {
        let mut state = self.state.lock();
        let Some((session, mounted)) = state.sessions.take(number) else {
            return;
        };
        // Still in the table if the connection was aborted: what is dead must not stay there.
        for mount in mounted {
            let dir = mount.dir.display();
            match mount.detach() {
                Ok(true) => {}
                Ok(false) => warn!(%dir, "something else is mounted over a dead mount"),
                Err(error) => warn!(%dir, %error, "cannot detach a dead mount"),
            }
        }
        drop(session);
        // What the other one is on stays.
        let there = state.sessions.directories();
        let mut dirs = self.dirs();
        dirs.retain(|dir| !there.contains(dir));
        for dir in &dirs {
            self.forget(mounts, dir);
        }
        state.close_if_unused(mounts);
        drop(state);
        mounts.tidy(&dirs);
    }

    /// What it shows is not to be trusted from now on.
    pub(super) fn distrust(&self) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        state.is_distrusted = true;
        // What is only to look at never was.
        match state.sessions.working() {
            Some(session) => Ok(session.mount.distrust()?),
            None => Ok(()),
        }
    }

    /// What is mounted inside its mounts, by whomever; the deepest last.
    pub(super) fn mounted_inside(&self) -> Result<Vec<PathBuf>, ApiError> {
        let state = self.state.lock();
        let inside = state.sessions.iter().map(|session| {
            session.mount.mounted_inside().map_err(|error| {
                ApiError::new(ErrorKind::Failed, "cannot read the table of mounts")
                    .caused_by(&error)
            })
        });
        let inside: Result<Vec<Vec<PathBuf>>, ApiError> = inside.collect();
        Ok(inside?.concat())
    }

    /// Forgets directories that somebody unmounted or moved by other means.
    pub(super) fn reconcile(&self, mounts: &Mounts, present: &dyn Fn(&Path) -> bool) {
        let missing = |slot: &Self| -> Vec<PathBuf> {
            let mut dirs = slot.dirs();
            dirs.retain(|dir| !present(dir));
            dirs
        };
        if missing(self).is_empty() {
            return;
        }
        // The table may be older than a mount made meanwhile: decide under the slot's lock, by
        // the session's own, fresh look.
        let state = self.state.lock();
        let now = state.sessions.directories();
        let mut gone = missing(self);
        gone.retain(|dir| !now.contains(dir));
        for dir in &gone {
            self.forget(mounts, dir);
        }
        drop(state);
        mounts.tidy(&gone);
    }
}

impl State {
    /// The view, opened if it is not.
    fn view(&mut self, mounts: &Mounts, subject: &Subject) -> Result<Arc<View>, ApiError> {
        let view = match &self.view {
            Some(view) => Arc::clone(view),
            None => match subject {
                Subject::Workspace(info) | Subject::Sandbox(info, _) | Subject::Onlooker(info) => {
                    mounts.store.open_live(&info.name)?
                }
                Subject::Snapshot(info) => mounts.store.open_frozen(&info.id)?,
            },
        };
        self.view = Some(Arc::clone(&view));
        Ok(view)
    }

    /// Opens the view and starts a session on the directory.
    fn open(
        &mut self,
        mounts: &Mounts,
        subject: &Subject,
        dir: &Path,
    ) -> Result<Session, ApiError> {
        let view = self.view(mounts, subject)?;
        let root = rustix::process::geteuid().is_root();
        let options = MountOptions {
            read_only: view.is_frozen() || subject.is_onlooker(),
            threads: MountOptions::default_threads(),
            source: format!("floe:{}:{}", mounts.store.id(), subject.label()),
            allow_other: root,
            // Not as it was when the request came: it may have been rolled back meanwhile. Whoever does
            // that from here on waits for this slot, and finds the session.
            trusted: root
                && subject.may_be_trusted()
                && !self.is_distrusted
                && !view.is_sandboxed()?,
            id_shift: subject.id_shift(),
            others_write: subject.is_onlooker(),
        };
        let mut guarded = None;
        let mount = Mount::new(served(&view, subject), dir, &options, &mut |device| {
            guarded = Some(mounts.guard.serves(device));
        })?;
        let attachment = view.attach(attached(&mount, subject));
        let number = mounts.next_session.fetch_add(1, Ordering::Relaxed);
        let (events, target) = (mounts.events.clone(), subject.target());
        mount.on_end(Box::new(move || {
            // Nobody listens any more once the daemon ends; then the session ends with it.
            if events.send(Event::SessionEnded(target, number)).is_err() {
                tracing::debug!("a session ended after its daemon");
            }
        }));
        Ok(Session {
            number,
            id_shift: subject.id_shift(),
            _attachment: attachment,
            _guarded: guarded,
            mount,
        })
    }

    /// Once a session is on no directory any more: waits for it to end, and closes what it used.
    fn settle(&mut self, mounts: &Mounts, meant: Meant, wait: Duration) {
        self.sessions.settle(meant, wait);
        self.close_if_unused(mounts);
    }

    fn close_if_unused(&mut self, mounts: &Mounts) {
        if self.sessions.is_empty()
            && !self.is_lent
            && let Some(view) = self.view.take()
        {
            mounts.store.close_view(&view);
        }
    }
}

/// The error that a virtual machine has it.
fn lent(subject: &Subject) -> ApiError {
    let what = format!("'{}' is in a virtual machine", subject.label());
    ApiError::new(ErrorKind::Conflict, what).hint("see which with `floe vm list`")
}

/// Mounts a session that runs on a further directory.
fn bind(session: &Session, subject: &Subject, dir: &Path) -> Result<(), ApiError> {
    let on = session.mount.directories();
    let Some(first) = on.first() else {
        let what = format!("'{}' was unmounted while programs used it", subject.label());
        return Err(ApiError::new(ErrorKind::Conflict, what).hint(
            "wait for them to end, or cut them off with `floe daemon stop`; then mount it again",
        ));
    };
    if subject.id_shift().is_some() && subject.id_shift() != session.id_shift {
        let what = format!("'{}' is mounted on '{}'", subject.label(), first.display());
        return Err(ApiError::new(ErrorKind::Conflict, what).hint(format!(
            "a sandbox needs it for itself; unmount it with `floe umount {}`",
            subject.label()
        )));
    }
    if !rustix::process::geteuid().is_root() {
        let what = format!("'{}' is mounted on '{}'", subject.label(), first.display());
        return Err(ApiError::new(ErrorKind::Conflict, what).hint(format!(
            "only root can mount it on a second directory; move it with `floe umount {0}`, then \
             `floe mount {0} {1}`",
            subject.label(),
            shell_word(&dir.to_string_lossy())
        )));
    }
    Ok(session.mount.bind(dir)?)
}
