//! Requests about files. All of them are done by the workers.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use floe_guest::message::{Failure, FileRef};

use super::entry::look;
use super::list::list;
use super::path::resolve;
use super::remove::remove;
use super::stream::{Reading, Writing, make_parents, open};
use crate::agent::Agent;
use crate::agent::channel::Work;
use crate::agent::failure::failed;
use crate::agent::pool::Done;
use crate::agent::users::{Database, acting_as};

/// What is done with a file, once the user and the path are known.
type FileJob = Box<dyn FnOnce(&Path, &Database) -> Result<Done, Failure> + Send>;

impl Agent {
    /// Has something done with a file, as the user.
    fn with_file(&self, number: u64, file: FileRef, job: FileJob) {
        self.pool.submit(
            number,
            Box::new(move || {
                let names = Database::read();
                let user = names.user(file.user.as_deref())?;
                let path = resolve(&file.path, &user)?;
                acting_as(&user, || job(&path, &names))
            }),
        );
    }

    pub(crate) fn read_file(&mut self, number: u64, file: FileRef) {
        if let Some(channel) = self.channels.get_mut(number) {
            channel.work = Work::Reading(Reading {
                path: PathBuf::from(&file.path),
                file: None,
                busy: true,
                chunk: Vec::new(),
            });
        }
        let job: FileJob = Box::new(|path, names| {
            open(path, false, names).map(|(fd, entry)| Done::Opened(fd, path.to_owned(), entry))
        });
        self.with_file(number, file, job);
    }

    pub(crate) fn write_file(&mut self, number: u64, file: FileRef) {
        if let Some(channel) = self.channels.get_mut(number) {
            channel.work = Work::Writing(Writing {
                path: PathBuf::from(&file.path),
                file: None,
                busy: true,
                frames: VecDeque::new(),
                taken: 0,
            });
        }
        let job: FileJob = Box::new(|path, names| {
            make_parents(path)?;
            open(path, true, names).map(|(fd, entry)| Done::Opened(fd, path.to_owned(), entry))
        });
        self.with_file(number, file, job);
    }

    pub(crate) fn stat(&self, number: u64, file: FileRef) {
        self.with_file(number, file, Box::new(entry));
    }

    pub(crate) fn list(&self, number: u64, file: FileRef, depth: u32) {
        let job: FileJob = Box::new(move |path, names| list(path, depth, names).map(Done::Listed));
        self.with_file(number, file, job);
    }

    pub(crate) fn make_dir(&self, number: u64, file: FileRef) {
        let job: FileJob = Box::new(|path, names| {
            make_parents(path)?;
            fs::create_dir(path).map_err(|error| {
                failed(&format!("make the directory '{}'", path.display()), error)
            })?;
            entry(path, names)
        });
        self.with_file(number, file, job);
    }

    pub(crate) fn rename(&self, number: u64, from: String, to: String, user: Option<String>) {
        let asked = user.clone();
        let job: FileJob = Box::new(move |from, names| {
            let to = resolve(&to, &names.user(asked.as_deref())?)?;
            make_parents(&to)?;
            fs::rename(from, &to).map_err(|error| {
                let what = format!("rename '{}' to '{}'", from.display(), to.display());
                failed(&what, error)
            })?;
            entry(&to, names)
        });
        self.with_file(number, FileRef { path: from, user }, job);
    }

    pub(crate) fn remove(&self, number: u64, file: FileRef) {
        let job: FileJob = Box::new(|path, _| remove(path).map(|()| Done::Nothing));
        self.with_file(number, file, job);
    }
}

fn entry(path: &Path, names: &Database) -> Result<Done, Failure> {
    look(path, names)
        .map(Done::Entry)
        .map_err(|error| failed(&format!("look at '{}'", path.display()), error))
}
