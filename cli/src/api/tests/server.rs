//! The API over TCP: connections, and their end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::super::keys::Keys;
use super::super::server::ApiServer;
use super::fake::Fake;
use crate::config::ApiConfig;
use crate::wire::sandbox::SandboxState;

struct Served {
    runtime: tokio::runtime::Runtime,
    server: ApiServer,
    fake: Arc<Fake>,
    key: String,
    _dir: tempfile::TempDir,
}

fn serve(config: &ApiConfig) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::open(dir.path()).unwrap();
    let key = keys.list().unwrap()[0].key.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fake = Arc::new(Fake::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = ApiServer::start_on(runtime.handle(), fake.clone(), listener, config, keys);
    Served {
        server: server.unwrap(),
        runtime,
        fake,
        key,
        _dir: dir,
    }
}

fn send(served: &Served, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(served.server.address()).unwrap();
    stream
        .write_all(request.replace('\n', "\r\n").as_bytes())
        .unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_request_over_a_connection_is_answered() {
    let served = serve(&ApiConfig::default());
    let key = &served.key;
    let request =
        format!("GET /v2/sandboxes HTTP/1.1\nhost: x\nx-api-key: {key}\nconnection: close\n\n");
    let text = read(send(&served, &request));
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.ends_with("\r\n\r\n[]"), "{text}");
}

/// A client that has the answer sends the next request on the same connection.
#[test]
fn a_connection_takes_the_next_request_after_one_that_was_refused_unread() {
    let served = serve(&ApiConfig::default());
    let refused = "POST /process.Process/Start HTTP/1.1\nhost: x\ne2b-sandbox-id: none\n\
                   content-type: application/connect+json\ntransfer-encoding: chunked\n\n3\nabc\n";
    let mut stream = send(&served, refused);
    // The end of the body comes later.
    std::thread::sleep(Duration::from_millis(100));
    stream.write_all(b"0\r\n\r\n").unwrap();
    let next = format!(
        "GET /v2/sandboxes HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\nconnection: close\r\n\r\n",
        served.key
    );
    stream.write_all(next.as_bytes()).unwrap();
    let text = read(stream);
    assert!(text.starts_with("HTTP/1.1 502"), "{text}");
    assert!(text.contains("HTTP/1.1 200"), "{text}");
}

/// Nor is one asked for a body that nobody wants.
#[test]
fn a_client_that_waits_with_its_body_is_refused_without_it() {
    let served = serve(&ApiConfig::default());
    let refused = "POST /sandboxes HTTP/1.1\nhost: x\nx-api-key: none\nexpect: 100-continue\n\
                   content-type: application/json\ncontent-length: 5000000\n\n";
    let text = read(send(&served, refused));
    assert!(text.starts_with("HTTP/1.1 401"), "{text}");
    assert!(text.contains("connection: close"), "{text}");
}

#[test]
fn an_answer_before_a_long_body_says_that_the_connection_ends() {
    let served = serve(&ApiConfig::default());
    let asked = "GET /health HTTP/1.1\nhost: x\ncontent-length: 3000000\n\n";
    let text = read(send(&served, asked));
    assert!(text.starts_with("HTTP/1.1 2"), "{text}");
    assert!(text.contains("connection: close"), "{text}");
}

#[test]
fn what_is_no_http_ends_its_connection_alone() {
    let served = serve(&ApiConfig::default());
    let text = read(send(&served, "\u{1}\u{2}nonsense\n\n"));
    assert!(
        text.is_empty() || text.starts_with("HTTP/1.1 400"),
        "{text}"
    );
    let long = format!("GET / HTTP/1.1\nx: {}\n\n", "y".repeat(100_000));
    let mut stream = TcpStream::connect(served.server.address()).unwrap();
    // The daemon may have had enough before all of it is sent.
    let sent = stream.write_all(long.as_bytes());
    let mut text = String::new();
    let got = stream.read_to_string(&mut text);
    assert!(
        sent.is_err() || got.is_err() || text.starts_with("HTTP/1.1 4"),
        "{text}"
    );
    let health = read(send(
        &served,
        "GET /health HTTP/1.1\nhost: x\nconnection: close\n\n",
    ));
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[test]
fn the_end_waits_for_requests_at_work_and_closes_idle_connections() {
    let served = serve(&ApiConfig::default());
    served.fake.add_sandbox("abc", SandboxState::Running);
    let idle = send(&served, "GET /health HTTP/1.1\nhost: x\n\n");
    served.fake.slow(Duration::from_millis(500));
    let key = &served.key;
    let request = format!("GET /sandboxes/abc HTTP/1.1\nhost: x\nx-api-key: {key}\n\n");
    let busy = send(&served, &request);
    // The request has arrived once its turn is taken.
    std::thread::sleep(Duration::from_millis(200));
    assert!(served.server.end(), "all have finished");
    assert!(read(busy).starts_with("HTTP/1.1 200"));
    assert!(read(idle).starts_with("HTTP/1.1 200"));
    drop(served.runtime);
}

#[test]
fn the_end_does_not_wait_for_ever() {
    let served = serve(&ApiConfig {
        end_time_max_s: 0,
        ..ApiConfig::default()
    });
    served.fake.add_sandbox("abc", SandboxState::Running);
    served.fake.slow(Duration::from_secs(2));
    let key = &served.key;
    let request = format!("GET /sandboxes/abc HTTP/1.1\nhost: x\nx-api-key: {key}\n\n");
    let busy = send(&served, &request);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!served.server.end());
    assert!(!read(busy).starts_with("HTTP/1.1 200"));
}
