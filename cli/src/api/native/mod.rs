//! Floe's own part of the REST API, below `/floe/v1`: what the wire contract has no words for. Objects
//! are those that the commands print with `--json`; members may be added, never changed.

mod sandboxes;
mod sessions;
mod snapshots;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::state::Shared;

/// Its routes.
pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(sessions::attach, sessions::show))
        .routes(routes!(sandboxes::list))
        .routes(routes!(sandboxes::show))
        .routes(routes!(sandboxes::rollback))
        .routes(routes!(snapshots::show))
}
