//! Files as plain bodies: `GET /files` and `POST /files`.

mod download;
mod gzip;
mod upload;

use axum::extract::DefaultBodyLimit;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::state::Shared;
use super::access::{Operation, Signed};

/// Its routes. Uploads have no bound but the sandbox's quota: they are written as they come.
pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(download::download, upload::upload))
        .layer(DefaultBodyLimit::disable())
}

/// Which file, and who may.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct FileParams {
    /// Its path: absolute, or relative to the user's home.
    path: Option<String>,
    /// The user of the sandbox on whose behalf.
    username: Option<String>,
    /// A signature, in place of the sandbox's token.
    signature: Option<String>,
    /// Until when that counts, in seconds since 1970.
    signature_expiration: Option<i64>,
}

impl FileParams {
    /// What of it was signed.
    pub(super) fn signed(&self, operation: Operation) -> Signed<'_> {
        Signed {
            path: self.path.as_deref().unwrap_or(""),
            operation,
            user: self.username.as_deref(),
            signature: self.signature.as_deref(),
            expiration: self.signature_expiration,
        }
    }

    /// Whether there is a signature.
    pub(super) fn is_signed(&self) -> bool {
        self.signature.is_some()
    }
}
