//! Requests to the HTTP interface, without any of the packages that know it.
//!
//! A status is never an error here: what a test expects, it says with [`Answer::expect`].

use std::fmt;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Request, Response};
use ureq::{Agent, Body};

/// Longest time for one answer; more is a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// Most bytes of an answer that are read.
const BODY_MAX: u64 = 256 << 20;

/// What was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request, for messages.
    pub request: String,
    /// The HTTP status.
    pub status: u16,
    /// The headers: names in lower case, in the order that they came.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns itself if the status is this.
    ///
    /// # Panics
    /// Otherwise, with the answer.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert!(self.status == status, "expected status {status}\n{self}");
        self
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not exactly one JSON value.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("the body is not JSON ({error})\n{self}"))
    }

    /// A text in the JSON object that the body is.
    ///
    /// # Panics
    /// When there is no such text.
    #[must_use]
    #[track_caller]
    pub fn text(&self, key: &str) -> String {
        match &self.json()[key] {
            Value::String(text) => text.clone(),
            other => panic!("`{key}` is {other}\n{self}"),
        }
    }

    /// A header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(found, value)| (found == name).then_some(value.as_str()))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.request, self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value}")?;
        }
        write!(f, "{}", String::from_utf8_lossy(&self.body))
    }
}

/// A client of one server with one key. Clones share nothing that limits how many requests run at
/// once.
#[derive(Clone, Debug)]
pub struct Api {
    url: String,
    key: Option<String>,
    agent: Agent,
}

impl Api {
    /// A client of the server at `url`, such as `http://127.0.0.1:4711`.
    #[must_use]
    pub fn new(url: &str, key: Option<&str>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(LIMIT))
            .max_idle_connections(0)
            .proxy(None)
            .build();
        Self {
            url: url.trim_end_matches('/').to_owned(),
            key: key.map(str::to_owned),
            agent: config.into(),
        }
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request and returns the answer; `None` when there is no whole answer, because the
    /// server is not there or went away.
    ///
    /// # Panics
    /// When `path` or a header cannot be sent at all.
    #[track_caller]
    pub fn attempt(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<Answer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("x-api-key", key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sent = if body.is_empty() {
            let request = request.body(());
            self.agent.run(request.expect("a request that can be sent"))
        } else {
            let request = request.body(body);
            self.agent.run(request.expect("a request that can be sent"))
        };
        answer(format!("{method} {path}"), sent.ok()?)
    }

    /// Sends a request with a JSON body, if there is one.
    ///
    /// # Panics
    /// When there is no whole answer.
    #[must_use]
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.send_with(method, path, &[], body)
    }

    /// As [`Api::send`], with further headers.
    ///
    /// # Panics
    /// When there is no whole answer.
    #[must_use]
    #[track_caller]
    pub fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        self.attempt_json(method, path, headers, body)
            .unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    /// As [`Api::attempt`], with a JSON body if there is one.
    ///
    /// # Panics
    /// As [`Api::attempt`].
    #[track_caller]
    pub fn attempt_json(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Option<Answer> {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push(("content-type", "application/json"));
        }
        self.attempt(method, path, &headers, &bytes.unwrap_or_default())
    }

    /// A GET request.
    ///
    /// # Panics
    /// As [`Api::send`].
    #[must_use]
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    /// A POST request.
    ///
    /// # Panics
    /// As [`Api::send`].
    #[must_use]
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body))
    }

    /// A DELETE request.
    ///
    /// # Panics
    /// As [`Api::send`].
    #[must_use]
    #[track_caller]
    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None)
    }
}

fn answer(request: String, response: Response<Body>) -> Option<Answer> {
    let (parts, mut body) = response.into_parts();
    let headers = parts.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    let headers = headers.collect();
    let body = body.with_config().limit(BODY_MAX).read_to_vec().ok()?;
    Some(Answer {
        request,
        status: parts.status.as_u16(),
        headers,
        body,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with these bytes, and returns the request.
    fn server(answer: &'static [u8]) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let len = stream.read(&mut request).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8_lossy(&request[..len]).into_owned()
        });
        (url, thread)
    }

    #[test]
    fn a_failure_is_an_answer_and_its_headers_are_there() {
        let (url, thread) = server(
            b"HTTP/1.1 503 Busy\r\nShould-Retry: true\r\nContent-Length: 12\r\n\r\n{\"code\":503}",
        );
        let answer = Api::new(&url, Some("k")).post("/x?a=1", &serde_json::json!({"b": 2}));
        assert_eq!(answer.header("should-retry"), Some("true"));
        assert_eq!(answer.expect(503).json()["code"], 503);
        let request = thread.join().unwrap();
        assert!(request.starts_with("POST /x?a=1 HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("x-api-key: k\r\n"), "{request}");
    }

    #[test]
    fn half_an_answer_is_none() {
        let (url, thread) = server(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nshort");
        assert!(Api::new(&url, None).attempt("GET", "/", &[], &[]).is_none());
        thread.join().unwrap();
    }
}
