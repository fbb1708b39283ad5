//! A stream of answers: messages as they come, a sign of life when there are none, and an end that
//! says how it ended.
//!
//! A client that goes away drops the stream and with it what the messages come from, which for a
//! process means detaching, never killing.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::Times;
use super::envelope::{END_STREAM, encode};
use super::error::{Code, RpcError};

/// Where the messages of a stream come from.
pub(in super::super) trait Feed: Send + 'static {
    /// What is sent.
    type Message: Serialize + Send;

    /// The message that says that there is nothing to tell.
    fn keepalive(&self) -> Self::Message;

    /// What comes next. May be dropped while it waits.
    fn next(&mut self) -> impl Future<Output = Fed<Self::Message>> + Send;
}

/// What came.
#[derive(Debug)]
pub(in super::super) enum Fed<M> {
    /// A message; more may come.
    More(M),
    /// The last message.
    Last(M),
    /// No more comes.
    End(Result<(), RpcError>),
}

/// The last envelope of a stream.
#[derive(Serialize)]
struct EndStream {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RpcError>,
}

/// Answers with a stream that begins with a message and goes on with what is fed.
pub(in super::super) fn answer<F: Feed>(
    first: F::Message,
    feed: F,
    times: Times,
    ending: CancellationToken,
) -> Response {
    let started = Live {
        feed,
        phase: Phase::First(first),
        keepalive: times.keepalive,
        quiet_until: Instant::now() + times.keepalive,
        deadline: times.timeout.map(|timeout| Instant::now() + timeout),
        ending,
    };
    respond(Body::from_stream(stream::unfold(
        started,
        async |mut live| {
            let bytes = live.step().await?;
            Some((Ok::<_, Infallible>(bytes), live))
        },
    )))
}

/// Answers with a stream that ends at once: with an error, or with one message.
pub(in super::super) fn end<M: Serialize>(result: Result<M, RpcError>) -> Response {
    let (message, error) = match result {
        Ok(message) => (enveloped(0, &message), None),
        Err(error) => (Bytes::new(), Some(error)),
    };
    let end = enveloped(END_STREAM, &EndStream { error });
    respond(Body::from([&message[..], &end[..]].concat()))
}

fn respond(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/connect+json")], body).into_response()
}

struct Live<F: Feed> {
    feed: F,
    phase: Phase<F::Message>,
    keepalive: Duration,
    quiet_until: Instant,
    deadline: Option<Instant>,
    ending: CancellationToken,
}

enum Phase<M> {
    First(M),
    Middle,
    Last(Option<RpcError>),
    Over,
}

impl<F: Feed> Live<F> {
    /// The next envelope.
    async fn step(&mut self) -> Option<Bytes> {
        match std::mem::replace(&mut self.phase, Phase::Middle) {
            Phase::First(message) => Some(enveloped(0, &message)),
            Phase::Middle => Some(self.middle().await),
            Phase::Last(error) => Some(self.last(error)),
            Phase::Over => None,
        }
    }

    async fn middle(&mut self) -> Bytes {
        let deadline = self.deadline;
        let over = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = over => {
                let what = "the time of the stream is over";
                self.last(Some(RpcError::new(Code::DeadlineExceeded, what)))
            }
            () = self.ending.cancelled() => {
                let what = "the daemon is ending";
                self.last(Some(RpcError::new(Code::Unavailable, what)))
            }
            fed = self.feed.next() => {
                self.quiet_until = Instant::now() + self.keepalive;
                match fed {
                    Fed::More(message) => enveloped(0, &message),
                    Fed::Last(message) => {
                        self.phase = Phase::Last(None);
                        enveloped(0, &message)
                    }
                    Fed::End(result) => self.last(result.err()),
                }
            }
            () = tokio::time::sleep_until(self.quiet_until) => {
                self.quiet_until = Instant::now() + self.keepalive;
                enveloped(0, &self.feed.keepalive())
            }
        }
    }

    fn last(&mut self, error: Option<RpcError>) -> Bytes {
        self.phase = Phase::Over;
        enveloped(END_STREAM, &EndStream { error })
    }
}

/// A message in an envelope. Messages are made here, of parts that are bounded: one that cannot be written
/// would be a bug, and is told as one.
fn enveloped(flags: u8, message: &impl Serialize) -> Bytes {
    let text = serde_json::to_vec(message).ok();
    let envelope = text.and_then(|text| encode(flags, &text));
    envelope.unwrap_or_else(|| {
        tracing::error!("a message cannot be written");
        let end = br#"{"error":{"code":"internal","message":"a message cannot be written"}}"#;
        encode(END_STREAM, end).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds what it was given, then nothing.
    struct Script(Vec<Fed<u32>>);

    impl Feed for Script {
        type Message = u32;

        fn keepalive(&self) -> u32 {
            0
        }

        async fn next(&mut self) -> Fed<u32> {
            match self.0.is_empty() {
                true => std::future::pending().await,
                false => self.0.remove(0),
            }
        }
    }

    fn times(timeout_s: Option<u64>) -> Times {
        Times {
            timeout: timeout_s.map(Duration::from_secs),
            keepalive: Duration::from_secs(50),
        }
    }

    async fn played(script: Vec<Fed<u32>>, times: Times, ending: CancellationToken) -> String {
        let response = answer(9, Script(script), times, ending);
        assert_eq!(
            response.headers()["content-type"],
            "application/connect+json"
        );
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap();
        let mut told = String::new();
        let mut rest = &body[..];
        while let Some((head, tail)) = rest.split_first_chunk::<5>() {
            let len = usize::try_from(u32::from_be_bytes([head[1], head[2], head[3], head[4]]));
            let (data, tail) = tail.split_at(len.unwrap());
            told += &format!("{}{} ", head[0], String::from_utf8_lossy(data));
            rest = tail;
        }
        told
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_last_message() {
        let script = vec![Fed::More(1), Fed::Last(2)];
        let told = played(script, times(None), CancellationToken::new()).await;
        assert_eq!(told, "09 01 02 2{} ");
    }

    #[tokio::test]
    async fn a_stream_that_fails_says_why_at_its_end() {
        let lost = RpcError::new(Code::Unavailable, "lost");
        let script = vec![Fed::More(1), Fed::End(Err(lost))];
        let told = played(script, times(None), CancellationToken::new()).await;
        let end = r#"2{"error":{"code":"unavailable","message":"lost"}} "#;
        assert_eq!(told, format!("09 01 {end}"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_shows_life_until_its_time_is_over() {
        let told = played(Vec::new(), times(Some(120)), CancellationToken::new()).await;
        assert!(told.starts_with("09 00 00 2{"), "{told}");
        assert!(told.contains("deadline_exceeded"), "{told}");
    }

    #[tokio::test]
    async fn the_end_of_the_daemon_ends_a_stream() {
        let ending = CancellationToken::new();
        ending.cancel();
        let told = played(Vec::new(), times(None), ending).await;
        assert!(told.contains("unavailable"), "{told}");
    }

    #[tokio::test]
    async fn an_error_before_the_first_message_stands_in_the_stream() {
        let response = end::<u32>(Err(RpcError::new(Code::NotFound, "x")));
        assert_eq!(response.status().as_u16(), 200);
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        assert_eq!(body[0], END_STREAM);
        assert_eq!(
            &body[5..],
            br#"{"error":{"code":"not_found","message":"x"}}"#
        );
    }
}
