//! Writing files: one as a plain body, or several as parts of a form.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::multipart::Field;
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::super::error::{ErrorBody, HttpError};
use super::super::super::input::Params;
use super::super::super::state::Shared;
use super::super::access::{Operation, checked_user, may_use, reach, sandbox};
use super::super::failure;
use super::FileParams;
use super::gzip::Decompressor;
use crate::agent::{Agent, AgentError, Entry};

/// Most files in one form.
const FILES_MAX: usize = 1000;

/// A file that was written.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Written {
    /// The last part of its path.
    name: String,
    /// Always `file`.
    r#type: &'static str,
    /// Its absolute path.
    path: String,
}

impl From<Entry> for Written {
    fn from(entry: Entry) -> Self {
        Self {
            name: entry.name,
            r#type: "file",
            path: entry.path,
        }
    }
}

/// Writes files: a plain body (`application/octet-stream`) to `path`, or the parts called `file` of a
/// form, each to `path` or to its own file name. Directories are made. A body may be compressed with
/// gzip. What breaks off leaves what was written so far.
#[utoipa::path(
    post,
    path = "/files",
    tag = "files",
    params(FileParams),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = Vec<Written>),
        (status = 400, body = ErrorBody, description = "It is a directory, or no path"),
        (status = 401, body = ErrorBody, description = "No such user, or not with that token or signature"),
        (status = 502, body = ErrorBody, description = "The sandbox does not run"),
        (status = 507, body = ErrorBody, description = "No room"),
    ),
)]
pub(super) async fn upload(
    State(api): State<Shared>,
    Params(params): Params<FileParams>,
    request: Request,
) -> Result<Json<Vec<Written>>, HttpError> {
    let (mut parts, body) = request.into_parts();
    let sandbox = sandbox(&parts)?;
    let path = params.path.as_deref();
    let signed = params.signed(Operation::Write);
    may_use(&api, &sandbox, &parts.headers, &signed).await?;
    let user = checked_user(params.username.clone())?;
    let target = Target {
        agent: reach(&api, &sandbox).await?,
        sandbox,
        user,
        idle_max: api.idle_time_max(),
    };
    let body = plain(&mut parts, body)?;
    let kind = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = kind
        .and_then(|kind| kind.split(';').next())
        .unwrap_or("")
        .trim()
        .to_lowercase();
    let written = match (kind.as_str(), path) {
        ("application/octet-stream", Some(path)) => {
            vec![target.write(path, body.into_data_stream()).await?]
        }
        ("application/octet-stream", None) => {
            return Err(HttpError::bad_request("a plain body needs a `path`"));
        }
        (kind, path) if kind.starts_with("multipart/") => {
            let gathered = Arc::new(AtomicUsize::new(0));
            let request = Request::from_parts(parts, measured(body, Arc::clone(&gathered)));
            let form = Multipart::from_request(request, &api).await;
            let form = form.map_err(|error| HttpError::bad_request(error.body_text()))?;
            target.write_form(path, form, &gathered).await?
        }
        _ => {
            let what = "files come as `application/octet-stream` or as `multipart/form-data`";
            return Err(HttpError::bad_request(what));
        }
    };
    Ok(Json(written))
}

/// The body, decompressed if it is compressed.
fn plain(parts: &mut Parts, body: Body) -> Result<Body, HttpError> {
    let Some(encoding) = parts.headers.remove(CONTENT_ENCODING) else {
        return Ok(body);
    };
    match encoding.as_bytes().to_ascii_lowercase().as_slice() {
        b"identity" | b"" => Ok(body),
        b"gzip" => {
            parts.headers.remove(CONTENT_LENGTH);
            Ok(Body::from_stream(decompressed(body.into_data_stream())))
        }
        _ => Err(HttpError::bad_request(
            "a body is compressed with gzip, or not at all",
        )),
    }
}

fn decompressed<E: Into<axum::BoxError>>(
    body: impl Stream<Item = Result<Bytes, E>> + Unpin + Send,
) -> impl Stream<Item = io::Result<Bytes>> {
    let state = (body, Some(Decompressor::new()), Bytes::new());
    stream::unfold(state, async |(mut body, mut decompressor, mut piece)| {
        let next = async {
            while let Some(mut current) = decompressor.take() {
                let ready = if !piece.is_empty() {
                    let ready = current.push(&mut piece)?;
                    decompressor = Some(current);
                    ready
                } else if let Some(more) = body.next().await {
                    piece = more.map_err(io::Error::other)?;
                    decompressor = Some(current);
                    continue;
                } else {
                    current.finish()?
                };
                if !ready.is_empty() {
                    return Ok(Some(ready));
                }
            }
            Ok(None)
        };
        let ready: io::Result<Option<Bytes>> = next.await;
        Some((ready.transpose()?, (body, decompressor, piece)))
    })
}

/// Most that may gather of a form while no piece of a file comes out of it.
const GATHERED_MAX: usize = 1 << 20;

/// A form's body, which ends with an error if too much of it comes without any of a file in it: whoever
/// reads the form keeps that in memory. `gathered` is set back to 0 whenever something comes out.
fn measured(body: Body, gathered: Arc<AtomicUsize>) -> Body {
    let state = (body.into_data_stream(), gathered);
    Body::from_stream(stream::unfold(state, async |(mut body, gathered)| {
        // Or the reader would take in all that is there before it looks at any.
        tokio::task::yield_now().await;
        let piece = match body.next().await? {
            Ok(piece) => piece,
            Err(error) => return Some((Err(io::Error::other(error)), (body, gathered))),
        };
        let before = gathered.fetch_add(piece.len(), Ordering::Relaxed);
        if before > GATHERED_MAX {
            let error = io::Error::other("the head of a part is too long");
            return Some((Err(error), (body, gathered)));
        }
        Some((Ok(piece), (body, gathered)))
    }))
}

/// Where files go.
struct Target {
    sandbox: String,
    agent: Agent,
    user: Option<String>,
    idle_max: Duration,
}

impl Target {
    fn failed(&self, error: &AgentError) -> HttpError {
        failure::status(&self.sandbox, error)
    }

    /// Writes one file as it comes.
    async fn write<E: std::fmt::Display>(
        &self,
        path: &str,
        mut pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Written, HttpError> {
        let opened = self.agent.write_file(path, self.user.as_deref()).await;
        let mut file = opened.map_err(|error| self.failed(&error))?;
        loop {
            let next = tokio::time::timeout(self.idle_max, pieces.next()).await;
            let next = next.map_err(|_| HttpError::timed_out("nothing came for too long"))?;
            let Some(piece) = next else { break };
            let piece = piece
                .map_err(|error| HttpError::bad_request(format!("the body broke off: {error}")))?;
            let written = file.write(piece).await;
            written.map_err(|error| self.failed(&error))?;
        }
        let entry = file.finish().await;
        Ok(entry.map_err(|error| self.failed(&error))?.into())
    }

    /// Writes the files of a form.
    async fn write_form(
        &self,
        path: Option<&str>,
        mut form: Multipart,
        gathered: &AtomicUsize,
    ) -> Result<Vec<Written>, HttpError> {
        let mut written: Vec<Written> = Vec::new();
        let mut asked = HashSet::new();
        loop {
            let next = tokio::time::timeout(self.idle_max, form.next_field()).await;
            let next = next.map_err(|_| HttpError::timed_out("nothing came for too long"))?;
            let next = next.map_err(|error| HttpError::bad_request(error.body_text()))?;
            gathered.store(0, Ordering::Relaxed);
            let Some(mut field) = next else {
                return Ok(written);
            };
            if field.name() != Some("file") {
                loop {
                    let next = tokio::time::timeout(self.idle_max, field.chunk()).await;
                    let next =
                        next.map_err(|_| HttpError::timed_out("nothing came for too long"))?;
                    let next = next.map_err(|error| HttpError::bad_request(error.body_text()))?;
                    gathered.store(0, Ordering::Relaxed);
                    if next.is_none() {
                        break;
                    }
                }
                continue;
            }
            let path = match path {
                Some(path) => path.to_owned(),
                None => file_name(&field)?,
            };
            if written.len() >= FILES_MAX {
                let what = format!("there are more than {FILES_MAX} files");
                return Err(HttpError::bad_request(what));
            }
            if !asked.insert(path.clone()) {
                let what = format!("'{}' is in it more than once", path.escape_default());
                return Err(HttpError::bad_request(what));
            }
            let field = field.inspect(|_| gathered.store(0, Ordering::Relaxed));
            written.push(self.write(&path, field).await?);
        }
    }
}

/// The path that stands as a part's file name.
fn file_name(field: &Field<'_>) -> Result<String, HttpError> {
    match field.file_name() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(HttpError::bad_request(
            "without a `path` each file needs a name",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::gzip::Compressor;
    use super::*;

    async fn collected(pieces: Vec<io::Result<Bytes>>) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        let mut stream = std::pin::pin!(decompressed(stream::iter(pieces)));
        while let Some(piece) = stream.next().await {
            data.extend(piece?);
        }
        Ok(data)
    }

    fn compressed(data: &[u8]) -> Bytes {
        let mut compressor = Compressor::new();
        let first = compressor.push(data).unwrap();
        [first, compressor.finish().unwrap()].concat().into()
    }

    #[tokio::test]
    async fn a_compressed_body_is_written_as_it_was_before() {
        let data: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let bytes = compressed(&data);
        let pieces = bytes
            .chunks(777)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)));
        assert_eq!(collected(pieces.collect()).await.unwrap(), data);
        let empty = vec![Ok(compressed(b""))];
        assert_eq!(collected(empty).await.unwrap(), b"");
    }

    #[tokio::test]
    async fn a_compressed_body_that_breaks_off_is_an_error() {
        let bytes = compressed(&[1; 50_000]);
        let cut = bytes.slice(..bytes.len() - 4);
        assert!(collected(vec![Ok(cut)]).await.is_err());
        let lost = Err(io::ErrorKind::ConnectionReset.into());
        assert!(collected(vec![Ok(bytes), lost]).await.is_err());
        assert!(collected(Vec::new()).await.is_err());
    }
}
