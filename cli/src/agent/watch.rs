//! Watching directories of a sandbox.

use floe_guest::message::{Event, FileRef, Outcome, Request, WatchEvent};

use super::channel::{Channel, Step};
use super::error::AgentError;
use super::{Agent, FILES, within};

/// How many bytes of events may wait for their reader. Beyond that the agent keeps some, and then
/// tells only that there was more.
const WATCH_WINDOW: u32 = 256 * 1024;

/// A directory that is watched. Dropping it ends that.
#[derive(Debug)]
pub struct Watch {
    channel: Option<Channel>,
    error: Option<AgentError>,
}

impl Watch {
    /// What happens next; `None` when the directory is gone, and when the watch has failed (see
    /// [`Self::error`]). May be dropped while it waits.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        let channel = self.channel.as_mut()?;
        let error = match channel.next().await {
            Ok(Step::Event(Event::Changed(event))) => return Some(event),
            Ok(Step::End(Outcome::Done)) => None,
            Ok(other) => Some(channel.unexpected(&other)),
            Err(error) => Some(error),
        };
        self.error = error;
        self.channel = None;
        None
    }

    /// Why it ended, other than that the directory is gone.
    #[must_use]
    pub fn error(&self) -> Option<&AgentError> {
        self.error.as_ref()
    }
}

impl Agent {
    /// Watches a directory. What happens after this has returned is told.
    ///
    /// # Errors
    ///
    /// [`AgentError::NotFound`], [`AgentError::NotADirectory`], [`AgentError::PermissionDenied`],
    /// [`AgentError::UnknownUser`], [`AgentError::Exhausted`] of more directories than may be watched.
    pub async fn watch(
        &self,
        path: &str,
        user: Option<&str>,
        recursive: bool,
    ) -> Result<Watch, AgentError> {
        let file = FileRef {
            path: path.to_owned(),
            user: user.map(str::to_owned),
        };
        within(FILES, async {
            let mut channel = self
                .open(WATCH_WINDOW, &Request::Watch { file, recursive })
                .await?;
            match channel.event().await? {
                Event::Watching => Ok(Watch {
                    channel: Some(channel),
                    error: None,
                }),
                other => Err(channel.unexpected(&Step::Event(other))),
            }
        })
        .await
    }
}
