//! Errors of the Connect protocol: a word, a text, and for single requests a status.
//!
//! Source: <https://connectrpc.com/docs/protocol/>, "Error codes". `canceled` has the status 499 there as well.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::envelope::EnvelopeError;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Code {
    /// The request makes no sense.
    InvalidArgument,
    /// It took too long.
    DeadlineExceeded,
    /// There is no such thing.
    NotFound,
    /// There is such a thing already.
    AlreadyExists,
    /// The user may not.
    PermissionDenied,
    /// A limit is reached.
    ResourceExhausted,
    /// It is not served.
    Unimplemented,
    /// It went wrong.
    Internal,
    /// It cannot be done at this moment, or the sandbox is gone.
    Unavailable,
    /// Something was lost.
    DataLoss,
    /// Who asks is not known.
    Unauthenticated,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal | Self::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// An error, as it stands in an answer or in the last envelope of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(in super::super) struct RpcError {
    /// What kind of error it is.
    pub(in super::super) code: Code,
    /// What went wrong.
    pub(in super::super) message: String,
}

impl RpcError {
    /// An error of a kind.
    pub(in super::super) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), Json(self)).into_response();
        // What was asked of a sandbox may have happened, whatever became of the answer.
        let never = axum::http::HeaderValue::from_static("false");
        response.headers_mut().insert("should-retry", never);
        response
    }
}

impl From<EnvelopeError> for RpcError {
    fn from(error: EnvelopeError) -> Self {
        let code = match error {
            EnvelopeError::TooLong { .. } => Code::ResourceExhausted,
            EnvelopeError::Compressed => Code::Unimplemented,
            EnvelopeError::Flags { .. } | EnvelopeError::Truncated => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_statuses_are_those_of_the_protocol() {
        let documented = [
            (Code::InvalidArgument, "invalid_argument", 400),
            (Code::DeadlineExceeded, "deadline_exceeded", 504),
            (Code::NotFound, "not_found", 404),
            (Code::AlreadyExists, "already_exists", 409),
            (Code::PermissionDenied, "permission_denied", 403),
            (Code::ResourceExhausted, "resource_exhausted", 429),
            (Code::Unimplemented, "unimplemented", 501),
            (Code::Internal, "internal", 500),
            (Code::Unavailable, "unavailable", 503),
            (Code::DataLoss, "data_loss", 500),
            (Code::Unauthenticated, "unauthenticated", 401),
        ];
        for (code, word, status) in documented {
            let error = RpcError::new(code, "x");
            assert_eq!(serde_json::to_value(&error).unwrap()["code"], word);
            assert_eq!(error.into_response().status().as_u16(), status, "{word}");
        }
    }
}
