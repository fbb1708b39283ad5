//! Requests of the Connect protocol, as they arrive: single ones, and those that open a stream.

use std::str::FromStr;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::envelope::Decoder;
use super::error::{Code, RpcError};
use crate::api::error::HttpError;
use crate::api::input;
use crate::api::state::Shared;

/// How often a stream that has nothing to tell says that it is there, unless the client asks for less or
/// more.
const KEEPALIVE_USUAL: Duration = Duration::from_secs(90);
/// Most and least that a client may ask for, in seconds.
const KEEPALIVE_S: (u64, u64) = (1, 3600);
/// Longest time of a stream that a client may ask for, in digits of milliseconds (the protocol says 10).
const TIMEOUT_DIGITS_MAX: usize = 10;
/// How much sooner than a client asks for its time is over, at most, in milliseconds.
const SOONER_MS: u64 = 50;

/// The answer to a single request.
pub(in super::super) type Reply<T> = Result<Json<T>, RpcError>;

/// An answer that says nothing: `{}`.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
pub(in super::super) struct Empty {}

/// The message of a single request.
#[derive(Debug)]
pub(in super::super) struct Unary<T>(pub(in super::super) T);

impl<T: DeserializeOwned> FromRequest<Shared> for Unary<T> {
    type Rejection = Response;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, Response> {
        expect(request.headers(), "application/json").map_err(IntoResponse::into_response)?;
        let read = input::read(request.into_body(), api.config.request_bytes_max).await;
        let body = read.map_err(IntoResponse::into_response)?;
        let text = if body.is_empty() { b"{}" } else { &body[..] };
        parse(text).map(Self).map_err(IntoResponse::into_response)
    }
}

/// The one message of a request that opens a stream, and what it asks of the stream.
#[derive(Debug)]
pub(in super::super) struct Streaming<T> {
    /// The message, or what is wrong with it: that stands in the stream.
    pub(in super::super) message: Result<T, RpcError>,
    /// What it asks of the stream.
    pub(in super::super) times: Times,
}

/// What a request asks of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Times {
    /// How long it may go on.
    pub(in super::super) timeout: Option<Duration>,
    /// How often it says that it is there.
    pub(in super::super) keepalive: Duration,
}

impl<T: DeserializeOwned> FromRequest<Shared> for Streaming<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, HttpError> {
        expect(request.headers(), "application/connect+json")?;
        let times = Times::of(request.headers())?;
        let bytes_max = api.config.request_bytes_max;
        // Room for the head of the envelope; the decoder looks after the data.
        let read = input::read(request.into_body(), bytes_max.saturating_add(16));
        let body = tokio::time::timeout(api.idle_time_max(), read).await;
        let body = body.map_err(|_| HttpError::timed_out("the request does not come"))??;
        let mut decoder = Decoder::new(bytes_max);
        decoder.feed(&body);
        let message = one(&mut decoder).and_then(|data| parse(&data));
        Ok(Self { message, times })
    }
}

/// The data of a stream's one envelope.
fn one(decoder: &mut Decoder) -> Result<bytes::Bytes, RpcError> {
    let missing = || RpcError::new(Code::InvalidArgument, "the request has no message");
    let data = decoder.next()?.ok_or_else(missing)?;
    if decoder.next()?.is_some() {
        let what = "the request has more than one message";
        return Err(RpcError::new(Code::InvalidArgument, what));
    }
    decoder.finish()?;
    Ok(data)
}

/// A message in JSON. Members that are not known are passed over.
pub(in super::super) fn parse<T: DeserializeOwned>(data: &[u8]) -> Result<T, RpcError> {
    serde_json::from_slice(data).map_err(|error| {
        let what = format!("the message cannot be understood: {error}");
        RpcError::new(Code::InvalidArgument, what)
    })
}

/// Refuses what is not in the one form that is served.
pub(in super::super) fn expect(headers: &HeaderMap, media: &str) -> Result<(), HttpError> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let plain = given
        .and_then(|given| given.split(';').next())
        .unwrap_or("")
        .trim();
    if !plain.eq_ignore_ascii_case(media) {
        return Err(HttpError::unsupported(format!(
            "only `{media}` is served here"
        )));
    }
    let encoding = headers.get(header::CONTENT_ENCODING);
    match encoding.is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        true => Ok(()),
        false => Err(HttpError::unsupported("a compressed message is not served")),
    }
}

impl Times {
    /// What headers ask for.
    pub(in super::super) fn of(headers: &HeaderMap) -> Result<Self, HttpError> {
        let keepalive = number::<u64>(headers, "keepalive-ping-interval")?
            .map(|seconds| Duration::from_secs(seconds.clamp(KEEPALIVE_S.0, KEEPALIVE_S.1)));
        Ok(Self {
            timeout: timeout(headers)?,
            keepalive: keepalive.unwrap_or(KEEPALIVE_USUAL),
        })
    }
}

/// How long a request may take; 0 is as long as it likes. A client gives up by itself when the time is over, and
/// may say something else then: that it is over must have reached it before.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, HttpError> {
    let given = number::<u64>(headers, "connect-timeout-ms")?;
    let sooner = |ms: u64| ms - (ms / 20).min(SOONER_MS);
    Ok(given
        .filter(|ms| *ms > 0)
        .map(|ms| Duration::from_millis(sooner(ms))))
}

fn number<T: FromStr>(headers: &HeaderMap, name: &str) -> Result<Option<T>, HttpError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let digits = value.to_str().ok().filter(|text| {
        text.len() <= TIMEOUT_DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit())
    });
    let number = digits.and_then(|text| text.parse().ok());
    let wrong = || HttpError::bad_request(format!("`{name}` is no number"));
    number.ok_or_else(wrong).map(Some)
}

/// Answers a single request in the time that the client gives it, and that the API gives all.
pub(in super::super) async fn limit_time(
    State(api): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let most = Duration::from_secs(api.config.request_time_max_s);
    let limit = match timeout(request.headers()) {
        Ok(asked) => asked.map_or(most, |asked| asked.min(most)),
        Err(error) => return error.into_response(),
    };
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let what = "the time for it is over; it may still happen, or have happened";
            RpcError::new(Code::DeadlineExceeded, what).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::envelope::encode;
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()))
            .collect::<Vec<(axum::http::HeaderName, axum::http::HeaderValue)>>()
            .into_iter()
            .collect()
    }

    #[test]
    fn times_are_read_from_headers() {
        let times = |pairs: &[(&'static str, &str)]| Times::of(&headers(pairs));
        let usual = times(&[]).unwrap();
        assert_eq!((usual.timeout, usual.keepalive), (None, KEEPALIVE_USUAL));
        let asked = times(&[
            ("connect-timeout-ms", "1500"),
            ("keepalive-ping-interval", "50"),
        ]);
        let asked = asked.unwrap();
        assert_eq!(asked.timeout, Some(Duration::from_millis(1450)));
        assert_eq!(asked.keepalive, Duration::from_secs(50));
        assert_eq!(times(&[("connect-timeout-ms", "0")]).unwrap().timeout, None);
        let often = times(&[("keepalive-ping-interval", "0")]).unwrap();
        assert_eq!(often.keepalive, Duration::from_secs(1));
        for wrong in ["", "-1", "1.5", "x", "99999999999"] {
            assert!(times(&[("connect-timeout-ms", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_forms_that_are_served_are_taken() {
        let check = |pairs: &[(&'static str, &str)]| {
            expect(&headers(pairs), "application/json").map_err(|error| error.status.as_u16())
        };
        assert_eq!(
            check(&[("content-type", "application/json; charset=utf-8")]),
            Ok(())
        );
        let identity = [
            ("content-type", "application/json"),
            ("content-encoding", "identity"),
        ];
        assert_eq!(check(&identity), Ok(()));
        let gzip = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
        ];
        assert_eq!(check(&gzip), Err(415));
        assert_eq!(check(&[("content-type", "application/proto")]), Err(415));
        assert_eq!(check(&[]), Err(415));
    }

    #[test]
    fn a_request_for_a_stream_has_exactly_one_message() {
        let found = |bytes: &[u8]| {
            let mut decoder = Decoder::new(100);
            decoder.feed(bytes);
            one(&mut decoder).map_err(|error| error.code)
        };
        let envelope = encode(0, b"{}").unwrap();
        assert_eq!(found(&envelope).unwrap(), &b"{}"[..]);
        let two = [&envelope[..], &envelope[..]].concat();
        assert_eq!(found(&two), Err(Code::InvalidArgument));
        assert_eq!(found(b""), Err(Code::InvalidArgument));
        assert_eq!(found(&envelope[..6]), Err(Code::InvalidArgument));
        assert_eq!(found(b"\x01\0\0\0\0"), Err(Code::Unimplemented));
        assert_eq!(found(b"\0\0\0\xff\xff"), Err(Code::ResourceExhausted));
    }

    #[test]
    fn json_that_is_no_message_is_an_invalid_argument() {
        #[derive(Debug, serde::Deserialize)]
        struct Message {
            _path: String,
        }
        for wrong in [
            &b""[..],
            b"{",
            b"[]",
            b"{\"_path\": 1}",
            b"\xff",
            b"{\"_path\":\"\"}x",
        ] {
            let error = parse::<Message>(wrong).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
        }
        assert!(parse::<Message>(b"{\"_path\": \"\", \"new\": 1}").is_ok());
    }
}
