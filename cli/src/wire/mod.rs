//! What client and daemon say to each other: lines of JSON over a Unix socket.
//!
//! ```text
//! daemon  {"floe":"0.1.0","pid":4711}                            on connecting
//! client  {"snapshot":{"workspace":"w", ...}}                    a request
//! daemon  "accepted"                                             it begins to work on it
//! daemon  {"progress":{"files":120,"bytes":88000}}               only while importing or adopting
//! daemon  {"ok":{"id":"1f0c...", ...}}  or  {"error":{...}}      the answer
//! ```
//!
//! A connection carries any number of requests, one after the other. A daemon that is ending closes
//! its connections, but not one with a request that it has accepted, for as long as it can wait.
//! So a client whose connection ends before `accepted` knows that nothing was done, and asks the
//! next daemon; one whose connection ends after it does not know, and must not repeat. A request
//! that cannot be understood is answered with an error and never accepted. The greeting lets a
//! client notice that it talks to another version. The answers in [`records`] are
//! also what `--json` prints.
//!
//! One request turns its connection into something else: after the answer to `sandbox_exec` it
//! carries the lines of [`exec`] both ways, and ends with them.

mod changes;
pub mod check;
pub mod exec;
pub mod line;
mod path;
pub mod records;
mod requests;
pub mod retention;
pub mod sandbox;
pub mod space;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use path::WirePath;
pub use requests::*;

use crate::error::ApiError;

/// The first line a daemon sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The daemon's version of Floe.
    #[serde(rename = "floe")]
    pub version: String,
    /// Its process.
    pub pid: u32,
}

/// What a client may find as the first line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum FirstLine {
    /// The daemon listens.
    Greeting(Greeting),
    /// It will not, and says why.
    Refusal {
        /// Why.
        error: ApiError,
    },
}

/// A line from the daemon after a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// Work on the request begins; until this line nothing was done.
    Accepted,
    /// The request is still being worked on.
    Progress(Progress),
    /// The answer.
    Ok(T),
    /// The request failed.
    Error(ApiError),
}

/// How far an import is, or giving space back or a check: then in objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files taken in so far.
    pub files: u64,
    /// Bytes taken in so far.
    pub bytes: u64,
    /// How many files there will be, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// A request together with the type of its answer.
pub trait Call: Into<Request> {
    /// What a successful answer holds.
    type Answer: Serialize + DeserializeOwned;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::ErrorKind;
    use crate::wire::records::Stopping;

    fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let text = serde_json::to_string(value).unwrap();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
    }

    #[test]
    fn requests_survive_the_wire() {
        round_trip(&Request::from(Status {}));
        round_trip(&Request::from(TakeSnapshot {
            workspace: "w".into(),
            message: Some("two\nlines".into()),
            labels: BTreeMap::from([("k".into(), "v=1".into())]),
            ..TakeSnapshot::default()
        }));
        round_trip(&Request::from(Mount {
            target: "w".into(),
            dir: Some(WirePath::from(std::path::Path::new("/mnt/ü"))),
            read_only: true,
        }));
    }

    #[test]
    fn replies_survive_the_wire() {
        round_trip(&Reply::<Stopping>::Progress(Progress {
            files: 3,
            ..Progress::default()
        }));
        round_trip(&Reply::<Stopping>::Accepted);
        round_trip(&Reply::Ok(Stopping { pid: 7 }));
        let error = ApiError::new(ErrorKind::NotFound, "gone").hint("`floe ws list`");
        round_trip(&Reply::<Stopping>::Error(error));
        round_trip(&Greeting {
            version: "1".into(),
            pid: 1,
        });
    }

    #[test]
    fn the_documented_spelling_is_kept() {
        let text = serde_json::to_string(&Request::from(Rollback {
            workspace: "w".into(),
            snapshot: "s".into(),
        }));
        assert_eq!(
            text.unwrap(),
            r#"{"rollback":{"workspace":"w","snapshot":"s"}}"#
        );
        assert_eq!(
            serde_json::to_string(&Reply::<()>::Accepted).unwrap(),
            r#""accepted""#
        );
        let greeting = Greeting {
            version: "0.1.0".into(),
            pid: 4711,
        };
        assert_eq!(
            serde_json::to_string(&greeting).unwrap(),
            r#"{"floe":"0.1.0","pid":4711}"#
        );
    }
}
