//! What an error means to a client of the API: the one place that turns errors into statuses.
//!
//! Clients repeat what they believe was not done. So each answer says whether that is right:
//! `Should-Retry: true` (with `Retry-After`) stands only where surely nothing was done, and
//! everything else says `false`. Statuses that some clients repeat without looking (429, 502, 503)
//! are never used for what may have happened.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::request_id;
use crate::error::{ApiError, ErrorKind};

/// How long a client should wait before it asks again, in seconds.
const RETRY_AFTER_S: u64 = 1;
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// An error as a client of the REST API sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpError {
    /// The status of the answer.
    pub(super) status: StatusCode,
    /// What went wrong.
    pub(super) message: String,
    /// The word for it.
    pub(super) slug: &'static str,
    /// What to do next.
    pub(super) hint: Option<String>,
    /// Whether surely nothing was done and it may work soon.
    pub(super) again: bool,
    /// The sandbox that could not be reached, and the port in it.
    pub(super) unreachable: Option<(String, Option<u16>)>,
}

/// The body of an error. `code` and `message` are always there.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Error)]
pub(super) struct ErrorBody {
    /// The status of the answer, again.
    code: u16,
    /// What went wrong.
    message: String,
    /// The word for it; there may be new ones.
    error_code: &'static str,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// The request, as the daemon's log has it.
    #[serde(rename = "requestID", skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    /// The sandbox that could not be reached.
    #[serde(rename = "sandboxId", skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<String>,
    /// The port in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

impl HttpError {
    fn new(status: StatusCode, slug: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            slug,
            hint: None,
            again: false,
            unreachable: None,
        }
    }

    /// The request makes no sense as given.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// The client did not say who it is, or not with what is known.
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// The configuration or the host forbids it.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// There is no such thing.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The path is known, the method is not.
    pub(super) fn method_not_allowed() -> Self {
        let message = "this path does not know that method";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            message,
        )
    }

    /// The state of something stands against it.
    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// The body is longer than may be.
    pub(super) fn too_large(bytes_max: usize) -> Self {
        let message = format!("the body is longer than {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// The body is of another kind than is understood.
    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            message,
        )
    }

    /// The answer took too long. What was asked for may still happen.
    pub(super) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timed_out", message)
    }

    /// It cannot be done at this moment, and nothing of it was done.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self {
            again: true,
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
        }
    }

    /// No room on the disk, or in the quota.
    pub(super) fn no_space(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "no_space", message)
    }

    /// It was tried and failed.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
    }

    /// A bug in Floe.
    pub(super) fn internal() -> Self {
        let message = "the daemon hit a bug in Floe; its log has the details";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_server_error",
            message,
        )
    }

    /// A sandbox that a request was to go into is not there, or does not run. Clients look for "was not
    /// found" in this text to tell it from a broken connection.
    pub(super) fn gone(sandbox: &str) -> Self {
        let message = "The sandbox was not found";
        Self {
            unreachable: Some((sandbox.to_owned(), None)),
            ..Self::new(StatusCode::BAD_GATEWAY, "sandbox_not_found", message)
        }
    }

    /// Nothing in a sandbox listens on a port. Clients look for "port is not open" in this text.
    pub(super) fn port_closed(sandbox: &str, port: u16) -> Self {
        let message = "The sandbox is running but port is not open";
        Self {
            unreachable: Some((sandbox.to_owned(), Some(port))),
            ..Self::new(StatusCode::BAD_GATEWAY, "port_closed", message)
        }
    }

    /// What listens on a port of a sandbox did not answer as HTTP has it.
    pub(super) fn bad_gateway(sandbox: &str, port: u16, reason: &dyn std::error::Error) -> Self {
        let message = format!("What listens on the port in the sandbox gave no answer: {reason}");
        Self {
            unreachable: Some((sandbox.to_owned(), Some(port))),
            ..Self::new(StatusCode::BAD_GATEWAY, "bad_gateway", message)
        }
    }

    /// The body of the answer.
    pub(super) fn body(&self) -> ErrorBody {
        let (sandbox_id, port) = match &self.unreachable {
            Some((sandbox, port)) => (Some(sandbox.clone()), *port),
            None => (None, None),
        };
        ErrorBody {
            code: self.status.as_u16(),
            message: self.message.clone(),
            error_code: self.slug,
            hint: self.hint.clone(),
            request_id: request_id::current(),
            sandbox_id,
            port,
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        let again = if self.again { "true" } else { "false" };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(again));
        if self.again {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

/// The text of an error with its causes, outermost first.
pub(super) fn text(error: &ApiError) -> String {
    let mut text = error.error.clone();
    for cause in &error.causes {
        text.push_str(": ");
        text.push_str(cause);
    }
    text
}

impl From<ApiError> for HttpError {
    fn from(error: ApiError) -> Self {
        let message = text(&error);
        let made = match error.kind {
            ErrorKind::Usage => Self::bad_request(message),
            ErrorKind::NotFound => Self::not_found(message),
            ErrorKind::Conflict => Self::conflict(message),
            ErrorKind::Unavailable => Self::unavailable(message),
            ErrorKind::Failed
            | ErrorKind::Interrupted
            | ErrorKind::DaemonUnreachable
            | ErrorKind::VersionMismatch
            | ErrorKind::OutputClosed => Self::failed(message),
            ErrorKind::Internal => Self {
                message,
                ..Self::internal()
            },
        };
        Self {
            hint: error.hint,
            ..made
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(error: HttpError) -> (u16, String, bool) {
        let response = error.into_response();
        let again = response.headers()["should-retry"]
            .to_str()
            .unwrap()
            .to_owned();
        let after = response.headers().contains_key("retry-after");
        (response.status().as_u16(), again, after)
    }

    #[test]
    fn kinds_have_the_documented_statuses() {
        let documented = [
            (ErrorKind::Usage, 400),
            (ErrorKind::NotFound, 404),
            (ErrorKind::Conflict, 409),
            (ErrorKind::Unavailable, 503),
            (ErrorKind::Failed, 500),
            (ErrorKind::Interrupted, 500),
            (ErrorKind::Internal, 500),
        ];
        for (kind, status) in documented {
            let error = HttpError::from(ApiError::new(kind, "x"));
            assert_eq!(error.status.as_u16(), status, "{kind:?}");
        }
    }

    #[test]
    fn only_what_surely_was_not_done_may_be_repeated() {
        let unavailable = HttpError::from(ApiError::new(ErrorKind::Unavailable, "busy"));
        assert_eq!(headers(unavailable), (503, "true".to_owned(), true));
        for kind in [
            ErrorKind::Failed,
            ErrorKind::Conflict,
            ErrorKind::Internal,
            ErrorKind::Usage,
        ] {
            let (status, again, after) = headers(ApiError::new(kind, "x").into());
            assert_eq!((again.as_str(), after), ("false", false), "{kind:?}");
            assert!(![429, 502, 503].contains(&status), "{kind:?}");
        }
        let (status, again, _) = headers(HttpError::timed_out("x"));
        assert_eq!((status, again.as_str()), (504, "false"));
    }

    #[test]
    fn causes_are_part_of_the_message_and_hints_are_apart() {
        let error = ApiError::new(ErrorKind::Failed, "disk full")
            .while_doing("cannot write")
            .hint("make room");
        let body = HttpError::from(error).body();
        assert_eq!(body.message, "cannot write: disk full");
        assert_eq!(body.hint.as_deref(), Some("make room"));
    }

    #[test]
    fn what_clients_look_for_in_a_lost_sandbox_is_there() {
        let body = serde_json::to_value(HttpError::gone("abc").body()).unwrap();
        assert_eq!(body["message"], "The sandbox was not found");
        assert_eq!(
            (&body["code"], &body["sandboxId"]),
            (&502.into(), &"abc".into())
        );
        let body = serde_json::to_value(HttpError::port_closed("abc", 80).body()).unwrap();
        assert_eq!(
            body["message"],
            "The sandbox is running but port is not open"
        );
        assert_eq!((&body["code"], &body["port"]), (&502.into(), &80.into()));
    }
}
