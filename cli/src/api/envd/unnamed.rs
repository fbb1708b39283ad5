//! Which sandbox a request is for, where neither its headers nor its host say so.
//!
//! A client that reaches all sandboxes at one address names the sandbox in a header. Two leave it out:
//! * an address that a client signed for somebody else (`sandbox.download_url()`) is used without
//!   headers. The signature is made with the sandbox's token, which no other has;
//! * packages before 2.50 send nothing but the sandbox's token once they have connected to it.
//!
//! So a token tells which sandbox it is. Who has none is turned away before the sandboxes are looked
//! through where that can be seen. A signature has to be made with every token to be found, which a few at a
//! time at most may have done.

use axum::extract::{Query, Request};
use axum::http::Method;
use sha2::{Digest, Sha256};

use super::super::error::HttpError;
use super::super::state::Api;
use super::access::{ACCESS_TOKEN, Operation, SandboxId};
use super::files::FileParams;

/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 64;
/// Where files are.
const FILES: &str = "/files";
/// What else a sandbox's own part has, or begins with.
const PLAIN: [&str; 3] = ["/health", "/metrics", "/envs"];
const SERVICES: [&str; 2] = ["/process.Process/", "/filesystem.Filesystem/"];

/// Names the sandbox of a request that its token or signature alone tells. Leaves every other request as
/// it is.
pub(in super::super) async fn name_sandbox(
    api: &Api,
    request: &mut Request,
) -> Result<bool, HttpError> {
    if !is_of_sandbox(request.uri().path()) {
        return Ok(false);
    }
    let found = if let Some(token) = request.headers().get(ACCESS_TOKEN) {
        if !could_be_token(token.as_bytes()) {
            return Err(HttpError::unauthorized("that is no sandbox's token"));
        }
        let digest = Sha256::digest(token.as_bytes()).into();
        let found = api.work(move |backend| backend.with_token(&digest)).await?;
        // Of one that was killed: what clients expect then.
        found.ok_or_else(|| HttpError::gone(""))?
    } else {
        let Some((params, operation)) = signed(request) else {
            return Ok(false);
        };
        params.signed(operation).check_looks()?;
        let found = signed_with(api, params, operation).await?;
        found.ok_or_else(|| HttpError::unauthorized("that signature is not valid"))?
    };
    request.extensions_mut().insert(SandboxId(found));
    Ok(true)
}

/// Whether it looks like a token, as [`crate::daemon`] makes them.
fn could_be_token(text: &[u8]) -> bool {
    text.len() == TOKEN_DIGITS && text.iter().all(u8::is_ascii_hexdigit)
}

fn is_of_sandbox(path: &str) -> bool {
    path == FILES
        || PLAIN.contains(&path)
        || SERVICES.iter().any(|service| path.starts_with(service))
}

/// What a request says of its signature, if it has one.
fn signed(request: &Request) -> Option<(FileParams, Operation)> {
    let operation = match *request.method() {
        Method::GET => Operation::Read,
        Method::POST => Operation::Write,
        _ => return None,
    };
    let is_files = request.uri().path() == FILES;
    let params = Query::<FileParams>::try_from_uri(request.uri()).ok()?.0;
    (is_files && params.is_signed()).then_some((params, operation))
}

/// The sandbox with whose token a signature was made.
async fn signed_with(
    api: &Api,
    params: FileParams,
    operation: Operation,
) -> Result<Option<String>, HttpError> {
    let _turn = api.turn_to_search().await?;
    api.work(move |backend| {
        let mut all = backend.access_tokens()?.into_iter();
        let signed = params.signed(operation);
        let found = all.find(|(_, token)| signed.is_made_with(token));
        Ok(found.map(|(id, _)| id))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_sandbox_has_is_looked_up() {
        for path in ["/files", "/health", "/process.Process/Start"] {
            assert!(is_of_sandbox(path), "{path}");
        }
        for path in [
            "/",
            "/sandboxes",
            "/v2/sandboxes",
            "/files/a",
            "/snapshots",
            "/process",
        ] {
            assert!(!is_of_sandbox(path), "{path}");
        }
    }
}
