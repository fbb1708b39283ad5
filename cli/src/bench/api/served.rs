//! `floe serve` in a process of its own, and a client of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Request;

use super::super::error::{BenchError, Step};
use super::super::room::complain;

/// The port under which the agent's part of the API is.
const ENVD_PORT: &str = "49983";
/// Longest answer that is read.
const ANSWER_MAX: u64 = 1 << 20;

/// The server. Dropping it ends the process, and with it every sandbox.
pub(super) struct Served {
    child: Child,
    url: String,
    key: String,
    client: Agent,
    /// Of sandboxes that were made.
    tokens: RefCell<HashMap<String, String>>,
}

impl Served {
    /// Starts it on a new store in a directory.
    pub(super) fn start(floe: &Path, dir: &Path) -> Result<Self, BenchError> {
        let store: PathBuf = dir.join("store");
        let command = |arguments: &[&str]| {
            let mut command = Command::new(floe);
            command
                .arg("--store")
                .arg(&store)
                .args(arguments)
                .env("FLOE_LOG", "error");
            command.stdin(Stdio::null());
            command
        };
        let mut child = command(&["serve", "--addr", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .step("start the server")?;
        let mut line = String::new();
        let heard = match child.stdout.take() {
            Some(stdout) => BufReader::new(stdout).read_line(&mut line),
            None => Ok(0),
        };
        let client = Agent::new_with_config(
            Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(Duration::from_secs(60)))
                .build(),
        );
        let mut served = Self {
            child,
            url: String::new(),
            key: String::new(),
            client,
            tokens: RefCell::default(),
        };
        heard.step("hear from the server")?;
        let url = line.trim().strip_prefix("listening on ");
        served.url = url.map(str::to_owned).ok_or_else(|| BenchError::Wrong {
            what: format!("the server does not say where it is, but {line:?}"),
        })?;
        let key = command(&["serve", "key"])
            .output()
            .step("ask for the key")?;
        served.key = String::from_utf8_lossy(&key.stdout).trim().to_owned();
        Ok(served)
    }

    /// A call of the control plane. `null` is no body.
    pub(super) fn call(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        expected: u16,
    ) -> Result<Value, BenchError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("x-api-key", &self.key)
            .header("content-type", "application/json");
        let text = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let answer = self.send(request.body(text).step("make a request")?)?;
        if answer.0 != expected {
            let what = format!(
                "{method} {path} was answered with {}: {}",
                answer.0,
                String::from_utf8_lossy(&answer.1)
            );
            return Err(BenchError::Wrong { what });
        }
        Ok(serde_json::from_slice(&answer.1).unwrap_or(Value::Null))
    }

    /// Makes a sandbox and returns its id.
    pub(super) fn create(&self) -> Result<String, BenchError> {
        let request = json!({"templateID": "base", "timeout": 3600, "secure": true});
        let made = self.call("POST", "/v2/sandboxes", &request, 201)?;
        let text = |key: &str| made.get(key).and_then(Value::as_str).map(str::to_owned);
        let id = text("sandboxID").ok_or_else(|| BenchError::Wrong {
            what: format!("there is no id in {made}"),
        })?;
        if let Some(token) = text("envdAccessToken") {
            self.tokens.borrow_mut().insert(id.clone(), token);
        }
        Ok(id)
    }

    fn send(&self, request: Request<Vec<u8>>) -> Result<(u16, Vec<u8>), BenchError> {
        let mut answer = self.client.run(request).step("call the server")?;
        let mut bytes = Vec::new();
        let body = answer.body_mut().as_reader();
        body.take(ANSWER_MAX)
            .read_to_end(&mut bytes)
            .step("read the answer")?;
        Ok((answer.status().as_u16(), bytes))
    }

    /// A command for a shell in a sandbox; it is waited for.
    pub(super) fn run(&self, id: &str, command: &str) -> Result<(), BenchError> {
        let request = self.process(id, command)?;
        let (status, answer) = self.send(request)?;
        let ended = answer.windows(5).any(|word| word == b"\"end\"");
        match status == 200 && ended {
            true => Ok(()),
            false => Err(BenchError::Wrong {
                what: format!(
                    "a command was answered with {status}: {}",
                    String::from_utf8_lossy(&answer)
                ),
            }),
        }
    }

    /// The same for one that goes on.
    pub(super) fn begin(&self, id: &str, command: &str) -> Result<(), BenchError> {
        let request = self.process(id, command)?;
        let mut answer = self.client.run(request).step("call the server")?;
        // The first of its stream: it has started.
        let mut first = [0; 5];
        answer
            .body_mut()
            .as_reader()
            .read_exact(&mut first)
            .step("read the answer")
    }

    fn process(&self, id: &str, command: &str) -> Result<Request<Vec<u8>>, BenchError> {
        let token = self.tokens.borrow().get(id).cloned();
        let message =
            json!({"process": {"cmd": "/bin/sh", "args": ["-c", command]}, "stdin": false});
        let message = message.to_string();
        // Connect: a byte of flags, the length, the message.
        let mut body = vec![0];
        body.extend(
            u32::try_from(message.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes(),
        );
        body.extend(message.as_bytes());
        let mut request = Request::builder()
            .method("POST")
            .uri(format!("{}/process.Process/Start", self.url))
            .header("e2b-sandbox-id", id)
            .header("e2b-sandbox-port", ENVD_PORT)
            .header(
                "authorization",
                format!("Basic {}", STANDARD.encode("user:")),
            )
            .header("connect-protocol-version", "1")
            .header("content-type", "application/connect+json");
        if let Some(token) = token {
            request = request.header("x-access-token", token);
        }
        request.body(body).step("make a request")
    }

    fn end(&mut self) -> std::io::Result<()> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            complain(&format!("the server did not end: {error}"));
        }
    }
}
