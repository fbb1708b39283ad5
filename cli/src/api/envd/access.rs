//! Who may use a sandbox's files and processes: who has its token, or for one file a signature made
//! with it.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::super::error::HttpError;
use super::super::state::{Api, Shared};
use crate::agent::Agent;
use crate::error::ErrorKind;

/// The header with a sandbox's token.
pub(super) const ACCESS_TOKEN: &str = "x-access-token";
/// What a signature begins with, and its length: that and a SHA-256 in base64 without padding.
const SIGNATURE: (&str, usize) = ("v1_", 3 + 43);
/// Longest name of a user in bytes.
const USER_BYTES_MAX: usize = 256;

/// The sandbox that a request is for, as its address says.
#[derive(Clone, Debug)]
pub(in super::super) struct SandboxId(pub(in super::super) String);

/// Who asks, and the way to the sandbox's side.
pub(super) struct Caller {
    /// The sandbox.
    pub(super) sandbox: String,
    /// Its side.
    pub(super) agent: Agent,
    /// The user of the sandbox on whose behalf; absent for its usual one.
    pub(super) user: Option<String>,
}

impl FromRequestParts<Shared> for Caller {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, api: &Shared) -> Result<Self, HttpError> {
        let sandbox = sandbox(parts)?;
        let user = user(&parts.headers)?;
        let agent = reach(api, &sandbox).await?;
        Ok(Self {
            sandbox,
            agent,
            user,
        })
    }
}

/// The sandbox that a request is for.
pub(super) fn sandbox(parts: &Parts) -> Result<String, HttpError> {
    let found = parts.extensions.get::<SandboxId>();
    found.map(|id| id.0.clone()).ok_or_else(HttpError::internal)
}

/// The way to a sandbox's side.
pub(in super::super) async fn reach(api: &Api, sandbox: &str) -> Result<Agent, HttpError> {
    let reached = api.backend.agent(sandbox).await;
    reached.map_err(|error| match error.kind {
        // One that does not run is to clients the same as one that is gone.
        ErrorKind::NotFound | ErrorKind::Conflict => HttpError::gone(sandbox),
        _ => error.into(),
    })
}

/// The user that a request names: `Authorization: Basic`, without a password.
fn user(headers: &HeaderMap) -> Result<Option<String>, HttpError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(None);
    };
    let encoded = value.to_str().ok().and_then(|text| {
        let (scheme, rest) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("basic").then_some(rest.trim())
    });
    let decoded = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let name = text.and_then(|text| Some(text.split_once(':')?.0.to_owned()));
    let name = name.ok_or_else(|| HttpError::unauthorized("that does not name a user"))?;
    checked_user(Some(name))
}

/// A user's name, as far as its looks tell; an empty one is none.
pub(super) fn checked_user(name: Option<String>) -> Result<Option<String>, HttpError> {
    match name {
        Some(name) if name.len() > USER_BYTES_MAX || name.contains(['\0', ':', '\n']) => {
            Err(HttpError::unauthorized("that does not name a user"))
        }
        name => Ok(name.filter(|name| !name.is_empty())),
    }
}

/// Lets in who has the sandbox's token.
pub(super) async fn authenticate(
    State(api): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let checked = match sandbox(&parts) {
        Ok(sandbox) => has_token(&api, &sandbox, &parts.headers).await,
        Err(error) => Err(error),
    };
    match checked {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(error) => error.into_response(),
    }
}

async fn has_token(api: &Api, sandbox: &str, headers: &HeaderMap) -> Result<(), HttpError> {
    match (token(api, sandbox).await?, headers.get(ACCESS_TOKEN)) {
        (None, _) => Ok(()),
        (Some(token), Some(given)) if equal(token.as_bytes(), given.as_bytes()) => Ok(()),
        (Some(_), _) => Err(HttpError::unauthorized(
            "there is no `X-Access-Token`, or not the sandbox's",
        )),
    }
}

/// The token of a sandbox.
async fn token(api: &Api, sandbox: &str) -> Result<Option<String>, HttpError> {
    let id = sandbox.to_owned();
    let found = api.work(move |backend| backend.access_token(&id)).await;
    found.map_err(|error| match error.status {
        axum::http::StatusCode::NOT_FOUND => HttpError::gone(sandbox),
        _ => error,
    })
}

/// Whether two secrets are equal, in a time that tells nothing of either.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (Sha256::digest(one), Sha256::digest(other));
    one.as_slice().ct_eq(other.as_slice()).into()
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// What is signed, and how long that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed<'a> {
    /// The path as it stands in the request.
    pub(super) path: &'a str,
    /// What is done with it.
    pub(super) operation: Operation,
    /// The user as it stands in the request.
    pub(super) user: Option<&'a str>,
    /// The signature.
    pub(super) signature: Option<&'a str>,
    /// Until when it counts, in seconds since 1970.
    pub(super) expiration: Option<i64>,
}

/// Lets in who has the sandbox's token, or a signature made with it.
pub(super) async fn may_use(
    api: &Api,
    sandbox: &str,
    headers: &HeaderMap,
    signed: &Signed<'_>,
) -> Result<(), HttpError> {
    let Some(token) = token(api, sandbox).await? else {
        return Ok(());
    };
    if let Some(given) = headers.get(ACCESS_TOKEN) {
        return match equal(token.as_bytes(), given.as_bytes()) {
            true => Ok(()),
            false => Err(HttpError::unauthorized("that is not the sandbox's token")),
        };
    }
    signed.check(&token, now())
}

impl Signed<'_> {
    fn check(&self, token: &str, now: i64) -> Result<(), HttpError> {
        if self.signature.is_none() {
            return Err(HttpError::unauthorized("there is no signature"));
        }
        if !self.is_made_with(token) {
            return Err(HttpError::unauthorized("that signature is not valid"));
        }
        self.check_expiration(now)
    }

    fn check_expiration(&self, now: i64) -> Result<(), HttpError> {
        match self.expiration {
            Some(expiration) if expiration < now => {
                Err(HttpError::unauthorized("that signature has expired"))
            }
            _ => Ok(()),
        }
    }

    /// Whether it could count at all, as far as its looks tell.
    pub(super) fn check_looks(&self) -> Result<(), HttpError> {
        let looks = self.signature.is_some_and(|signature| {
            signature.starts_with(SIGNATURE.0) && signature.len() == SIGNATURE.1
        });
        if !looks {
            return Err(HttpError::unauthorized("that signature is not valid"));
        }
        self.check_expiration(now())
    }

    /// Whether the signature is one that was made with a token, whenever it counts.
    pub(super) fn is_made_with(&self, token: &str) -> bool {
        let given = self.signature.unwrap_or("");
        equal(self.made_with(token).as_bytes(), given.as_bytes())
    }

    /// The signature that counts.
    fn made_with(&self, token: &str) -> String {
        let operation = match self.operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let user = self.user.unwrap_or("");
        let mut text = format!("{}:{operation}:{user}:{token}", self.path);
        if let Some(expiration) = self.expiration {
            text.push_str(&format!(":{expiration}"));
        }
        let digest = Sha256::digest(text.as_bytes());
        format!("v1_{}", STANDARD_NO_PAD.encode(digest))
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed<'a>(signature: &'a str, expiration: Option<i64>) -> Signed<'a> {
        Signed {
            path: "/home/user/a b.txt",
            operation: Operation::Read,
            user: Some("root"),
            signature: Some(signature),
            expiration,
        }
    }

    // Made with `get_signature` of the published package e2b 2.50.0.
    const PLAIN: &str = "v1_guBDXaOcmskqEmVoCwaobwprirNoeGtnvfh8zU2bHh0";
    const LIMITED: &str = "v1_kp2moST0RuQfk4AkG0A8A55bZa5cfrUm9oWYNayQaVM";

    #[test]
    fn signatures_are_those_of_the_clients() {
        assert_eq!(signed("", None).made_with("tok"), PLAIN);
        assert_eq!(signed("", Some(1_800_000_000)).made_with("tok"), LIMITED);
        assert!(signed(PLAIN, None).check("tok", 0).is_ok());
        assert!(
            signed(LIMITED, Some(1_800_000_000))
                .check("tok", 1_800_000_000)
                .is_ok()
        );
    }

    #[test]
    fn a_signature_counts_for_what_was_signed_alone() {
        let refused = |signed: Signed<'_>| signed.check("tok", 0).unwrap_err().status.as_u16();
        assert_eq!(refused(signed("v1_", None)), 401);
        assert_eq!(refused(signed(&PLAIN[..PLAIN.len() - 1], None)), 401);
        assert_eq!(refused(signed(PLAIN, Some(1_800_000_000))), 401);
        let written = Signed {
            operation: Operation::Write,
            ..signed(PLAIN, None)
        };
        assert_eq!(refused(written), 401);
        let other = Signed {
            user: None,
            ..signed(PLAIN, None)
        };
        assert_eq!(refused(other), 401);
        let other = Signed {
            path: "/home/user/b",
            ..signed(PLAIN, None)
        };
        assert_eq!(refused(other), 401);
        let none = Signed {
            signature: None,
            ..signed(PLAIN, None)
        };
        assert_eq!(refused(none), 401);
        assert!(signed(PLAIN, None).check("other", 0).is_err());
        assert!(signed(PLAIN, None).check_looks().is_ok());
        for none in ["", "v1_", &PLAIN[1..], &PLAIN[..PLAIN.len() - 1]] {
            assert_eq!(
                signed(none, None)
                    .check_looks()
                    .unwrap_err()
                    .status
                    .as_u16(),
                401
            );
        }
        assert!(signed(LIMITED, Some(1)).check_looks().is_err());
        let late = signed(LIMITED, Some(1_800_000_000)).check("tok", 1_800_000_001);
        assert_eq!(late.unwrap_err().status.as_u16(), 401);
    }

    #[test]
    fn a_user_is_named_without_a_password() {
        let named = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            user(&headers).map_err(|error| error.status.as_u16())
        };
        assert_eq!(named("Basic cm9vdDo="), Ok(Some("root".to_owned())));
        assert_eq!(named("basic Og=="), Ok(None));
        assert_eq!(user(&HeaderMap::new()).unwrap(), None);
        for wrong in [
            "Basic",
            "Basic !",
            "Basic cm9vdA==",
            "Bearer x",
            "Basic /w==",
        ] {
            assert_eq!(named(wrong), Err(401), "{wrong}");
        }
        assert!(checked_user(Some("a\0".to_owned())).is_err());
    }
}
