//! Requests to a port in a sandbox: handed on as they are, and answers handed back. A connection that
//! is upgraded, as for WebSocket, becomes bytes in both directions.
//!
//! A port is open to everybody who knows the sandbox's id, as the wire contract has it.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::envd::reach;
use super::error::HttpError;
use super::state::Api;
use crate::agent::{AgentError, PortStream};

/// How long a connection into a sandbox may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Headers of one connection, which do not go on to the next. Source: RFC 9110, section 7.6.1.
const OF_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

/// Headers that are meant for the daemon, and not for what runs in a sandbox.
const OF_DAEMON: [HeaderName; 3] = [
    HeaderName::from_static("e2b-sandbox-id"),
    HeaderName::from_static("e2b-sandbox-port"),
    HeaderName::from_static("x-api-key"),
];

/// Hands a request on to a port in a sandbox.
pub(super) async fn forward(api: &Api, sandbox: String, port: u16, request: Request) -> Response {
    match try_forward(api, &sandbox, port, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn try_forward(
    api: &Api,
    sandbox: &str,
    port: u16,
    mut request: Request,
) -> Result<Response, HttpError> {
    if request.method() == Method::CONNECT {
        return Err(HttpError::method_not_allowed());
    }
    let id = sandbox.to_owned();
    let found = api.work(move |backend| backend.sandbox(&id)).await;
    match found {
        // Its ports are the host's, and the daemon's own is among them: nobody is let in there by a name.
        Ok(found) if found.network => {
            return Err(HttpError::forbidden(
                "the sandbox shares the host's network: its ports are reached there",
            ));
        }
        Ok(_) => {}
        Err(error) if error.status == StatusCode::NOT_FOUND => {
            return Err(HttpError::gone(sandbox));
        }
        Err(error) => return Err(error),
    }
    let stream = connect(api, sandbox, port).await?;
    let bad = |error: hyper::Error| HttpError::bad_gateway(sandbox, port, &error);
    let (mut sender, connection) = http1::handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(bad)?;
    let ending = api.ending.clone();
    tokio::spawn(async move {
        tokio::select! {
            ended = connection.with_upgrades() => {
                if let Err(error) = ended {
                    debug!(%error, "a connection into a sandbox ended");
                }
            }
            () = ending.cancelled() => {}
        }
    });
    let upgrade = upgrade_of(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    prepare(&mut request, upgrade.as_ref());
    let mut response = sender.send_request(request).await.map_err(bad)?;
    let upgrade = upgrade_of(response.headers());
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(client)) = (switched, client) {
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(tunnel(client, server, api.ending.clone()));
    }
    let mut response = response.map(Body::new);
    // What was spoken inside says nothing about the connection to the client.
    *response.version_mut() = Version::HTTP_11;
    strip(response.headers_mut());
    if let Some(protocol) = upgrade {
        let upgrading = HeaderValue::from_static("upgrade");
        response.headers_mut().insert(header::CONNECTION, upgrading);
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    Ok(response)
}

async fn connect(api: &Api, sandbox: &str, port: u16) -> Result<PortStream, HttpError> {
    let agent = reach(api, sandbox).await?;
    let connected = tokio::time::timeout(CONNECT_WAIT, agent.connect_port(port)).await;
    match connected {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(AgentError::PortClosed { .. })) => Err(HttpError::port_closed(sandbox, port)),
        Ok(Err(AgentError::Gone { .. })) => Err(HttpError::gone(sandbox)),
        Ok(Err(error)) => Err(HttpError::bad_gateway(sandbox, port, &error)),
        Err(_) => Err(HttpError::timed_out(
            "the sandbox does not take the connection",
        )),
    }
}

/// The protocol that a message asks to go on with, if it does.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let connection = headers.get(header::CONNECTION)?.to_str().ok()?;
    let mut words = connection.split(',');
    let asks = words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    asks.then(|| headers.get(header::UPGRADE).cloned())
        .flatten()
}

/// Makes of a request to the daemon one to what runs in the sandbox.
fn prepare(request: &mut Request, upgrade: Option<&HeaderValue>) {
    // Only the path goes on; the host stands in its header.
    let host = request.uri().authority().cloned();
    let path = request.uri().path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    if let (false, Some(host)) = (headers.contains_key(header::HOST), host)
        && let Ok(host) = HeaderValue::from_str(host.as_str())
    {
        headers.insert(header::HOST, host);
    }
    strip(headers);
    for name in OF_DAEMON {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
}

/// Removes what belongs to the connection that a message came on.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.into_iter().chain(OF_CONNECTION) {
        headers.remove(name);
    }
    headers.remove(header::UPGRADE);
}

/// Moves bytes in both directions until one side has no more, or the daemon ends.
async fn tunnel(client: OnUpgrade, server: OnUpgrade, ending: CancellationToken) {
    let (client, server) = match tokio::try_join!(client, server) {
        Ok(both) => both,
        Err(error) => {
            debug!(%error, "a connection was not upgraded");
            return;
        }
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    tokio::select! {
        moved = tokio::io::copy_bidirectional(&mut client, &mut server) => {
            if let Err(error) = moved {
                debug!(%error, "an upgraded connection ended");
            }
        }
        () = ending.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &'static str)], uri: &str) -> Request {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn what_is_meant_for_the_daemon_or_one_connection_does_not_go_on() {
        let mut request = request(
            &[
                ("host", "3000-abc.localhost:8420"),
                ("x-api-key", "secret"),
                ("e2b-sandbox-id", "abc"),
                ("e2b-sandbox-port", "3000"),
                ("connection", "close, x-mine"),
                ("x-mine", "1"),
                ("transfer-encoding", "chunked"),
                ("authorization", "Bearer app"),
                ("cookie", "a=b"),
            ],
            "http://3000-abc.localhost:8420/path?q=1",
        );
        prepare(&mut request, None);
        assert_eq!(request.uri(), "/path?q=1");
        let names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["host", "authorization", "cookie"]);
    }

    #[test]
    fn an_upgrade_is_asked_for_on_the_next_connection_too() {
        let headers = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        let mut request = request(&headers, "/ws");
        let upgrade = upgrade_of(request.headers());
        assert_eq!(upgrade.as_ref().unwrap(), "websocket");
        prepare(&mut request, upgrade.as_ref());
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["upgrade"], "websocket");
    }

    #[test]
    fn a_protocol_that_is_only_offered_is_no_upgrade() {
        let offered = request(&[("upgrade", "h2c"), ("connection", "close")], "/");
        assert_eq!(upgrade_of(offered.headers()), None);
        let mut offered = offered;
        prepare(&mut offered, None);
        assert!(!offered.headers().contains_key("upgrade"));
    }

    #[test]
    fn a_request_without_a_host_header_gets_the_one_of_its_address() {
        let mut request = request(&[], "http://3000-abc.localhost/");
        prepare(&mut request, None);
        assert_eq!(request.headers()["host"], "3000-abc.localhost");
    }
}
