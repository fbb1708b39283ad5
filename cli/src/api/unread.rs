//! What a client sends and nobody reads, as when a request is refused before its body has come.
//!
//! HTTP/1.1 has no place for the next request on a connection but behind the body of this one. A
//! connection that is just closed there looks to the client, who has the answer and sends the next
//! request, like a failure of that one. So a body that is left is read, within limits; and where there
//! is more of it the answer says that the connection ends (RFC 9112, section 9.6).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;

/// Most bytes that are read for nobody.
const BYTES_MAX: usize = 1 << 20;
/// How long an answer waits for them. What a client is in the middle of sending comes at once.
const WAIT: Duration = Duration::from_millis(500);
/// How long they may take where the answer goes on meanwhile.
const WAIT_BESIDE: Duration = Duration::from_secs(10);

/// A body that is still at hand when whoever had it is done with it.
#[derive(Clone)]
struct Lent(Arc<Held>);

struct Held {
    body: Mutex<Body>,
    /// Whether anybody has asked for some of it.
    touched: AtomicBool,
}

impl Lent {
    fn new(body: Body) -> Self {
        Self(Arc::new(Held {
            body: Mutex::new(body),
            touched: AtomicBool::new(false),
        }))
    }

    /// Whether nobody else will read on.
    fn is_back(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn is_untouched(&self) -> bool {
        !self.0.touched.load(Ordering::Relaxed)
    }

    /// Whether there is more of it than is read for nobody, by what was said of it.
    fn is_too_long(&self) -> bool {
        usize::try_from(self.size_hint().lower()).is_ok_and(|left| left > BYTES_MAX)
    }

    /// Reads what is left. Whether that was all.
    async fn drain(mut self, wait: Duration) -> bool {
        let all = async {
            let mut left = BYTES_MAX;
            while let Some(frame) = self.frame().await {
                let Ok(frame) = frame else { return false };
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let Some(rest) = left.checked_sub(bytes) else {
                    return false;
                };
                left = rest;
            }
            true
        };
        tokio::time::timeout(wait, all).await.unwrap_or(false)
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.0.touched.store(true, Ordering::Relaxed);
        Pin::new(&mut *self.0.body.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.body.lock().size_hint()
    }
}

/// Sees to it that the connection of a request can take the next one, or is known to end.
pub(super) async fn finish(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    // A client that waits to be told to send it is told when somebody asks for it (RFC 9110, section
    // 10.1.1), and that nobody has done.
    let waits = parts.headers.contains_key(header::EXPECT);
    let lent = Lent::new(body);
    let request = Request::from_parts(parts, Body::new(lent.clone()));
    let mut response = next.run(request).await;
    if !lent.is_back() || lent.is_end_stream() {
        return response;
    }
    let ends = if lent.is_too_long() || (waits && lent.is_untouched()) {
        false
    } else if response.status().is_success() {
        // A stream, perhaps, that is not to wait.
        tokio::spawn(lent.drain(WAIT_BESIDE));
        true
    } else {
        lent.drain(WAIT).await
    };
    if !ends {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;
    use futures_util::stream;
    use tower::ServiceExt;

    use super::*;

    /// The answer to a request whose body comes in so many pieces, a piece each millisecond.
    async fn answer(pieces: usize, size: usize, ends: bool) -> Response {
        let router = Router::new()
            .route("/refused", post(async || StatusCode::UNAUTHORIZED))
            .layer(axum::middleware::from_fn(finish));
        let pieces = stream::unfold(0, move |count| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if count == pieces && !ends {
                std::future::pending::<()>().await;
            }
            let piece = Bytes::from(vec![0; size]);
            (count < pieces).then_some((Ok::<_, Infallible>(piece), count + 1))
        });
        let request = Request::post("/refused").body(Body::from_stream(pieces));
        router.oneshot(request.unwrap()).await.unwrap()
    }

    fn closes(response: &Response) -> bool {
        response.headers().contains_key(header::CONNECTION)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_waits_for_the_rest_of_the_body() {
        let response = answer(100, 100, true).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert!(!closes(&response));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_long_or_does_not_end_ends_the_connection() {
        assert!(closes(&answer(100, 1 << 20, true).await));
        assert!(closes(&answer(3, 1, false).await));
    }
}
