//! Files of a sandbox. Everything is done with the rights of the user that is named.

use bytes::Bytes;
use floe_guest::message::{Entry, Event, FileRef, Outcome, Request};

use super::channel::{Channel, Sender, Step};
use super::error::AgentError;
use super::{Agent, FILES, within};

/// How much of a file may wait for its reader, in bytes.
const FILE_WINDOW: u32 = 256 * 1024;

/// Most entries of a list. The agent gives no more.
const MAX_ENTRIES: usize = 100_000;

/// Most bytes of a list.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// A file that is being read. Dropping it ends that.
#[derive(Debug)]
pub struct FileReader {
    /// The file. Those of `/proc` have more bytes than this says.
    pub entry: Entry,
    channel: Option<Channel>,
}

/// A file that is being written. Dropping it leaves what was written so far.
#[derive(Debug)]
pub struct FileWriter {
    channel: Channel,
    sender: Sender,
}

fn file(path: &str, user: Option<&str>) -> FileRef {
    FileRef {
        path: path.to_owned(),
        user: user.map(str::to_owned),
    }
}

impl FileReader {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`AgentError::Other`] if the file cannot be read any further.
    pub async fn next(&mut self) -> Result<Option<Bytes>, AgentError> {
        let Some(channel) = self.channel.as_mut() else {
            return Ok(None);
        };
        match within(FILES, channel.next()).await {
            Ok(Step::Data(bytes)) => Ok(Some(bytes)),
            Ok(Step::End(Outcome::Done)) => {
                self.channel = None;
                Ok(None)
            }
            Ok(other) => Err(channel.unexpected(&other)),
            Err(error) => {
                self.channel = None;
                Err(error)
            }
        }
    }
}

impl FileWriter {
    /// Appends; waits for room. After an error no more can be written.
    ///
    /// # Errors
    ///
    /// [`AgentError::NoSpace`], [`AgentError::Other`].
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), AgentError> {
        let Self { channel, sender } = self;
        within(FILES, async {
            // The end may come at any time: then it says what is wrong.
            tokio::select! {
                biased;
                step = channel.next() => Err(channel.unexpected(&step?)),
                sent = sender.data(bytes) => sent,
            }
        })
        .await
    }

    /// Ends the file; returns once all of it is written.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub async fn finish(mut self) -> Result<Entry, AgentError> {
        within(FILES, async {
            self.sender.eof().await?;
            match self.channel.outcome().await? {
                Outcome::Entry(entry) => Ok(entry),
                other => Err(self.channel.unexpected(&Step::End(other))),
            }
        })
        .await
    }
}

impl Agent {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    ///
    /// [`AgentError::NotFound`], [`AgentError::IsADirectory`], [`AgentError::PermissionDenied`],
    /// [`AgentError::UnknownUser`], [`AgentError::InvalidArgument`] of a device or the like.
    pub async fn read_file(
        &self,
        path: &str,
        user: Option<&str>,
    ) -> Result<FileReader, AgentError> {
        let request = Request::ReadFile(file(path, user));
        let (channel, entry) = self.opened(FILE_WINDOW, &request).await?;
        Ok(FileReader {
            entry,
            channel: Some(channel),
        })
    }

    /// Makes a file and its parents, or empties the file that is there, for writing.
    ///
    /// # Errors
    ///
    /// As [`Self::read_file`], and [`AgentError::NoSpace`].
    pub async fn write_file(
        &self,
        path: &str,
        user: Option<&str>,
    ) -> Result<FileWriter, AgentError> {
        let request = Request::WriteFile(file(path, user));
        let (channel, _) = self.opened(FILE_WINDOW, &request).await?;
        Ok(FileWriter {
            sender: channel.sender(),
            channel,
        })
    }

    async fn opened(&self, window: u32, request: &Request) -> Result<(Channel, Entry), AgentError> {
        within(FILES, async {
            let mut channel = self.open(window, request).await?;
            match channel.event().await? {
                Event::Opened(entry) => Ok((channel, entry)),
                other => Err(channel.unexpected(&Step::Event(other))),
            }
        })
        .await
    }

    /// What is there. A link is not followed.
    ///
    /// # Errors
    ///
    /// [`AgentError::NotFound`], [`AgentError::NotADirectory`], [`AgentError::PermissionDenied`],
    /// [`AgentError::UnknownUser`].
    pub async fn stat(&self, path: &str, user: Option<&str>) -> Result<Entry, AgentError> {
        self.entry(&Request::Stat(file(path, user))).await
    }

    /// What is in a directory, `depth` levels down (0 is 1), sorted by path.
    ///
    /// # Errors
    ///
    /// As [`Self::stat`], and [`AgentError::Exhausted`] of too many entries.
    pub async fn list(
        &self,
        path: &str,
        user: Option<&str>,
        depth: u32,
    ) -> Result<Vec<Entry>, AgentError> {
        let file = file(path, user);
        within(FILES, async {
            let mut channel = self
                .open(FILE_WINDOW, &Request::List { file, depth })
                .await?;
            let mut all = Vec::new();
            let mut bytes = 0;
            loop {
                match channel.next().await? {
                    Step::Event(Event::Entries(some)) => {
                        bytes += some.iter().map(weight).sum::<usize>();
                        all.extend(some);
                        if all.len() > MAX_ENTRIES || bytes > MAX_LIST_BYTES {
                            return Err(AgentError::Exhausted {
                                message: "the list of files is too long".to_owned(),
                            });
                        }
                    }
                    Step::End(Outcome::Done) => return Ok(all),
                    other => return Err(channel.unexpected(&other)),
                }
            }
        })
        .await
    }

    /// Makes a directory and its parents.
    ///
    /// # Errors
    ///
    /// [`AgentError::AlreadyExists`] if anything is there, and as [`Self::stat`].
    pub async fn make_dir(&self, path: &str, user: Option<&str>) -> Result<Entry, AgentError> {
        self.entry(&Request::MakeDir(file(path, user))).await
    }

    /// Renames. The parents of `to` are made, a file that is there is replaced.
    ///
    /// # Errors
    ///
    /// As [`Self::stat`]; [`AgentError::AlreadyExists`] of a directory that is not empty.
    pub async fn rename(
        &self,
        from: &str,
        to: &str,
        user: Option<&str>,
    ) -> Result<Entry, AgentError> {
        let request = Request::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            user: user.map(str::to_owned),
        };
        self.entry(&request).await
    }

    /// Removes a file or link, or a directory with all in it.
    ///
    /// # Errors
    ///
    /// As [`Self::stat`]; [`AgentError::Exhausted`] of a tree that is too deep.
    pub async fn remove(&self, path: &str, user: Option<&str>) -> Result<(), AgentError> {
        self.done(&Request::Remove(file(path, user)), FILES).await
    }

    async fn entry(&self, request: &Request) -> Result<Entry, AgentError> {
        match self.call(request, FILES).await? {
            Outcome::Entry(entry) => Ok(entry),
            other => Err(self.unexpected(&other)),
        }
    }
}

/// About how much memory it takes.
fn weight(entry: &Entry) -> usize {
    size_of::<Entry>()
        + entry.name.len()
        + entry.path.len()
        + entry.permissions.len()
        + entry.owner.len()
        + entry.group.len()
        + entry.symlink_target.as_ref().map_or(0, String::len)
}
