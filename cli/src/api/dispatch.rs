//! The one way in: gives each request its id and hands it to what it is meant for.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use tower::ServiceExt;

use super::place::{ENVD_PORT, Place, place};
use super::state::Shared;
use super::{envd, forward, request_id, rest, unread};

/// All that is served.
pub(super) fn router(api: &Shared) -> Router {
    let (envd, document) = envd::router(api);
    let (rest, _) = rest::router(api, &document);
    let parts = Parts {
        api: api.clone(),
        rest,
        envd,
    };
    Router::new()
        .fallback(dispatch)
        .with_state(parts)
        .layer(middleware::from_fn(unread::finish))
        .layer(middleware::from_fn(request_id::identify))
}

#[derive(Clone)]
struct Parts {
    api: Shared,
    rest: Router,
    envd: Router,
}

async fn dispatch(State(parts): State<Parts>, mut request: Request) -> Response {
    let place = place(request.uri(), request.headers(), &parts.api.domains);
    let answered = match place {
        Err(error) => return error.into_response(),
        Ok(Place::Rest) => match envd::name_sandbox(&parts.api, &mut request).await {
            Ok(true) => parts.envd.oneshot(request).await,
            Ok(false) => parts.rest.oneshot(request).await,
            Err(error) => return error.into_response(),
        },
        Ok(Place::Port {
            sandbox,
            port: ENVD_PORT,
        }) => {
            request.extensions_mut().insert(envd::SandboxId(sandbox));
            parts.envd.oneshot(request).await
        }
        Ok(Place::Port { sandbox, port }) => {
            return forward::forward(&parts.api, sandbox, port, request).await;
        }
    };
    match answered {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
