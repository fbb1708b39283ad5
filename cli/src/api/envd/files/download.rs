//! Reading a file.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_TYPE, VARY,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::super::error::{ErrorBody, HttpError};
use super::super::super::input::Params;
use super::super::super::state::Shared;
use super::super::access::{Operation, checked_user, may_use, reach, sandbox};
use super::super::failure;
use super::FileParams;
use super::gzip::Compressor;
use crate::agent::{AgentError, FileReader};

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// Reads a file. It is sent as it is read, and compressed for who accepts nothing but gzip.
#[utoipa::path(
    get,
    path = "/files",
    tag = "files",
    params(FileParams),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, body = ErrorBody, description = "It is a directory, or no path"),
        (status = 401, body = ErrorBody, description = "No such user, or not with that token or signature"),
        (status = 404, body = ErrorBody, description = "No such file"),
        (status = 502, body = ErrorBody, description = "The sandbox does not run"),
    ),
)]
pub(super) async fn download(
    State(api): State<Shared>,
    Params(params): Params<FileParams>,
    parts: Parts,
) -> Result<Response, HttpError> {
    let sandbox = sandbox(&parts)?;
    let path = params.path.as_deref().unwrap_or("");
    let signed = params.signed(Operation::Read);
    may_use(&api, &sandbox, &parts.headers, &signed).await?;
    let agent = reach(&api, &sandbox).await?;
    let user = checked_user(params.username.clone())?;
    let file = agent.read_file(path, user.as_deref()).await;
    let file = file.map_err(|error| failure::status(&sandbox, &error))?;
    let mut headers = HeaderMap::new();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(CONTENT_DISPOSITION, disposition(&file.entry.name)?);
    let compressor = wants_gzip(&parts.headers).then(Compressor::new);
    if compressor.is_some() {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let sending = Sending {
        file: Some(file),
        compressor,
    };
    let body = Body::from_stream(stream::unfold(sending, async |mut sending| {
        let piece = sending.next().await.transpose()?;
        Some((piece, sending))
    }));
    Ok((headers, body).into_response())
}

struct Sending {
    file: Option<FileReader>,
    compressor: Option<Compressor>,
}

impl Sending {
    /// The next piece of the body. An error breaks the body off, so that a part is not taken for the
    /// whole.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        while let Some(file) = &mut self.file {
            let read = file.next().await;
            let read = read.map_err(|error: AgentError| io::Error::other(error));
            let ready = match (read?, &mut self.compressor) {
                (Some(piece), None) => piece,
                (Some(piece), Some(compressor)) => compressor.push(&piece)?,
                (None, _) => {
                    self.file = None;
                    break;
                }
            };
            if !ready.is_empty() {
                return Ok(Some(ready));
            }
        }
        self.compressor.take().map(Compressor::finish).transpose()
    }
}

/// Whether a client accepts gzip and nothing else. One that accepts several gets the plain file: on
/// the way from a machine to itself compressing costs more than it saves.
fn wants_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING);
    accepted.is_some_and(|accepted| {
        accepted
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"gzip")
    })
}

/// What a browser calls the file. Source: RFC 6266, with RFC 8187 for the name.
fn disposition(name: &str) -> Result<HeaderValue, HttpError> {
    let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let value = format!("inline; filename*=UTF-8''{encoded}");
    HeaderValue::try_from(value).map_err(|_| HttpError::internal())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asks_for_nothing_else_gets_gzip() {
        let wants = |accepted: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            wants_gzip(&headers)
        };
        assert!(wants("gzip") && wants(" GZIP "));
        for accepted in ["gzip, deflate", "identity", "", "gzip;q=0"] {
            assert!(!wants(accepted), "{accepted}");
        }
        assert!(!wants_gzip(&HeaderMap::new()));
    }

    #[test]
    fn no_name_breaks_out_of_its_header() {
        let value = disposition("a\"; x=\r\nü").unwrap();
        let text = value.to_str().unwrap();
        assert_eq!(text, "inline; filename*=UTF-8''a%22%3B%20x%3D%0D%0A%C3%BC");
    }
}
