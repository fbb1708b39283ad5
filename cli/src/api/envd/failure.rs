//! What an error of a sandbox's side means to a client: the one place that turns it into a word of the
//! Connect protocol or a status.

use super::super::error::HttpError;
use super::connect::error::{Code, RpcError};
use crate::agent::AgentError;

fn code(error: &AgentError) -> Code {
    match error {
        AgentError::NotFound { .. } | AgentError::NoSuchProcess { .. } => Code::NotFound,
        AgentError::AlreadyExists { .. } => Code::AlreadyExists,
        AgentError::NotADirectory { .. }
        | AgentError::IsADirectory { .. }
        | AgentError::InvalidArgument { .. } => Code::InvalidArgument,
        AgentError::PermissionDenied { .. } => Code::PermissionDenied,
        AgentError::UnknownUser { .. } => Code::Unauthenticated,
        AgentError::Exhausted { .. } => Code::ResourceExhausted,
        AgentError::NoAnswer { .. } => Code::DeadlineExceeded,
        // Clients find out by themselves whether the sandbox is gone.
        AgentError::Gone { .. } | AgentError::PortClosed { .. } => Code::Unavailable,
        // A full disk is nothing that asking less often helps against, as `resource_exhausted` says.
        AgentError::NoSpace { .. } | AgentError::Protocol { .. } | AgentError::Other { .. } => {
            Code::Internal
        }
    }
}

impl From<AgentError> for RpcError {
    fn from(error: AgentError) -> Self {
        Self::new(code(&error), error.to_string())
    }
}

/// The same for a command that was to be started: a program or directory that is not there is a
/// mistake in the request.
pub(super) fn not_started(error: AgentError) -> RpcError {
    match error {
        AgentError::NotFound { message } => RpcError::new(Code::InvalidArgument, message),
        error => error.into(),
    }
}

/// The same where there are statuses. A sandbox that ends while it is asked is one that is gone.
pub(super) fn status(sandbox: &str, error: &AgentError) -> HttpError {
    let message = error.to_string();
    match error {
        AgentError::NotFound { .. } | AgentError::NoSuchProcess { .. } => {
            HttpError::not_found(message)
        }
        AgentError::AlreadyExists { .. } => HttpError::conflict(message),
        AgentError::NotADirectory { .. }
        | AgentError::IsADirectory { .. }
        | AgentError::InvalidArgument { .. } => HttpError::bad_request(message),
        AgentError::PermissionDenied { .. } => HttpError::forbidden(message),
        AgentError::UnknownUser { .. } => HttpError::unauthorized(message),
        AgentError::NoSpace { .. } => HttpError::no_space(message),
        AgentError::NoAnswer { .. } => HttpError::timed_out(message),
        AgentError::Gone { .. } => HttpError::gone(sandbox),
        AgentError::PortClosed { .. }
        | AgentError::Exhausted { .. }
        | AgentError::Protocol { .. }
        | AgentError::Other { .. } => HttpError::failed(message),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn of(make: fn(String) -> AgentError) -> (Code, StatusCode) {
        let error = make("x".to_owned());
        (code(&error), status("s", &error).status)
    }

    #[test]
    fn clients_can_tell_what_they_tell_apart() {
        let missing = of(|message| AgentError::NotFound { message });
        assert_eq!(missing, (Code::NotFound, StatusCode::NOT_FOUND));
        let there = of(|message| AgentError::AlreadyExists { message });
        assert_eq!(there, (Code::AlreadyExists, StatusCode::CONFLICT));
        let full = of(|message| AgentError::NoSpace { message });
        assert_eq!(full, (Code::Internal, StatusCode::INSUFFICIENT_STORAGE));
        let user = of(|message| AgentError::UnknownUser { message });
        assert_eq!(user, (Code::Unauthenticated, StatusCode::UNAUTHORIZED));
        let directory = of(|message| AgentError::IsADirectory { message });
        assert_eq!(directory, (Code::InvalidArgument, StatusCode::BAD_REQUEST));
        let gone = of(|reason| AgentError::Gone { reason });
        assert_eq!(gone, (Code::Unavailable, StatusCode::BAD_GATEWAY));
    }

    #[test]
    fn a_command_that_is_not_there_is_a_mistake_in_the_request() {
        let error = AgentError::NotFound {
            message: "no such directory".to_owned(),
        };
        assert_eq!(not_started(error).code, Code::InvalidArgument);
    }
}
