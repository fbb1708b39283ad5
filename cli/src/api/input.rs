//! What a request says: its body, its query and the names in its path, with errors as the API has
//! them.

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::error::HttpError;
use super::state::Shared;

/// A body of JSON. Members that are not known are passed over, and no body is `{}`.
#[derive(Debug)]
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Shared> for Input<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, HttpError> {
        let body = read(request.into_body(), api.config.request_bytes_max).await?;
        parse(&body).map(Self)
    }
}

/// The whole of a body that may not be long.
pub(super) async fn read(body: Body, bytes_max: usize) -> Result<Bytes, HttpError> {
    match Limited::new(body, bytes_max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(HttpError::too_large(bytes_max)),
        Err(error) => Err(HttpError::bad_request(format!(
            "the body broke off: {error}"
        ))),
    }
}

/// JSON from a body.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, HttpError> {
    let text = if body.trim_ascii().is_empty() {
        b"{}"
    } else {
        body
    };
    serde_json::from_slice(text)
        .map_err(|error| HttpError::bad_request(format!("the body cannot be understood: {error}")))
}

/// What stands behind the `?`.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for Params<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, api: &Shared) -> Result<Self, HttpError> {
        Query::from_request_parts(parts, api)
            .await
            .map(|Query(params)| Self(params))
            .map_err(|error: QueryRejection| HttpError::bad_request(error.body_text()))
    }
}

/// The name in the path, decoded: it may hold `/` and `:`.
#[derive(Debug)]
pub(super) struct Name(pub(super) String);

impl FromRequestParts<Shared> for Name {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, api: &Shared) -> Result<Self, HttpError> {
        Path::from_request_parts(parts, api)
            .await
            .map(|Path(name)| Self(name))
            .map_err(|error: PathRejection| HttpError::bad_request(error.body_text()))
    }
}
