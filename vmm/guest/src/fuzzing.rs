//! Inputs of a fuzzer, run against the protocol. **No public API**: behind the feature `fuzzing`, for the
//! target in `fuzz/` and for the test here that replays what it has found.
//!
//! Invariant: [`agent`] takes any bytes, does the same for the same ones, and panics exactly if the protocol
//! allowed what `docs/agent.md` does not.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{Decoder, Frame, FrameError, HEADER, Kind, MAX_EVENT, Side, encode};
use crate::hello::{Hello, VERSIONS};
use crate::message::{End, Event, ProcessRef, Request, decode_open, encode_open};
use crate::vm::VmOptions;
use crate::window::{INPUT_WINDOW, MAX_WINDOW, Window, cost, decode_credit};

/// What a side sent: the first byte says which side, and how the bytes come in pieces; or that they are the
/// options on a kernel's command line.
///
/// # Panics
/// If frames depend on how they came in pieces, are not those that were sent, are longer than allowed or
/// take more memory, or if a message does not come back as it was, or a window is not what was granted less
/// what was sent.
pub fn agent(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    if *first == 255 {
        return options(bytes);
    }
    let from = if first & 1 == 0 {
        Side::Daemon
    } else {
        Side::Agent
    };
    let (frames, failed) = decode(bytes, from, bytes.len().max(1));
    let step = usize::from(first >> 1) % 32 + 1;
    let again = decode(bytes, from, step);
    assert_eq!((&again.0, again.1), (&frames, failed));
    let mut sent = Vec::new();
    for frame in &frames {
        let (least, most) = frame.kind.bound();
        assert!((least..=most).contains(&frame.payload.len()));
        assert!(frame.kind.sent_by(from));
        assert_eq!(frame.kind == Kind::Hello, frame.channel == 0);
        assert!(encode(frame.kind, frame.channel, &frame.payload, &mut sent));
    }
    assert!(bytes.starts_with(&sent), "the frames are what was sent");
    let mut peer = Peer::default();
    for frame in &frames {
        peer.take(frame);
    }
}

/// The frames of bytes that come in pieces of `step`, and what ended them.
fn decode(bytes: &[u8], from: Side, step: usize) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = Decoder::new(from);
    let mut frames = Vec::new();
    let mut taken = 0;
    for piece in bytes.chunks(step) {
        let mut rest = piece;
        loop {
            let before = rest.len();
            let next = decoder.next(&mut rest);
            taken += before - rest.len();
            assert!(decoder.held() <= MAX_EVENT, "{} bytes held", decoder.held());
            match next {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => {
                    assert!(rest.is_empty(), "nothing is left over");
                    break;
                }
                Err(error) => {
                    // Then for ever.
                    assert_eq!(decoder.next(&mut rest), Err(error));
                    return (frames, Some(error));
                }
            }
        }
    }
    let whole: usize = frames
        .iter()
        .map(|frame| HEADER + frame.payload.len())
        .sum();
    assert_eq!(decoder.at_boundary(), whole == taken);
    (frames, None)
}

/// Both ends of the channels, as far as the protocol says what holds in them.
#[derive(Default)]
struct Peer {
    /// Window, and what a model makes of it.
    windows: BTreeMap<u32, (Window, u64)>,
}

impl Peer {
    fn take(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Hello => hello(&frame.payload),
            Kind::Open => {
                let (window, request) = decode_open(&frame.payload).expect("at least a window");
                let granted = Window::new(window);
                assert!(granted.left() == window.min(MAX_WINDOW));
                self.windows
                    .insert(frame.channel, (granted, granted.left().into()));
                if let Ok(request) = request {
                    asked(&request, window);
                }
            }
            Kind::Data | Kind::Stderr => self.spend(frame),
            Kind::Event => {
                self.spend(frame);
                same::<Event>(&frame.payload);
            }
            Kind::Credit => {
                let credit = decode_credit(&frame.payload).expect("four bytes");
                let (window, model) = self.window(frame.channel);
                let sum = *model + u64::from(credit);
                let fits = credit > 0 && sum <= u64::from(MAX_WINDOW);
                assert_eq!(window.add(credit).is_ok(), fits);
                if fits {
                    *model = sum;
                }
                assert_eq!(u64::from(window.left()), *model);
            }
            Kind::End => same::<End>(&frame.payload),
            Kind::Eof | Kind::Cancel => assert!(frame.payload.is_empty()),
        }
    }

    fn window(&mut self, channel: u32) -> &mut (Window, u64) {
        let new = (Window::new(INPUT_WINDOW), u64::from(INPUT_WINDOW));
        self.windows.entry(channel).or_insert(new)
    }

    fn spend(&mut self, frame: &Frame) {
        let (window, model) = self.window(frame.channel);
        let rest = model.checked_sub(u64::from(cost(frame.payload.len())));
        let may = frame.payload.len() <= window.payload() && rest.is_some();
        assert_eq!(window.take(frame.payload.len()).is_ok(), may);
        *model = rest.unwrap_or(*model);
        assert_eq!(u64::from(window.left()), *model);
    }
}

/// What both sides make of a hello.
fn hello(payload: &[u8]) {
    let Ok(theirs) = Hello::decode(payload) else {
        return;
    };
    assert!(theirs.lowest <= theirs.highest);
    assert_eq!(theirs.encode(), *payload);
    let ours = Hello::ours();
    let (answer, version) = ours.answer(theirs);
    assert_eq!(theirs.accept(answer).ok(), version);
    if let Some(version) = version {
        assert!(VERSIONS.contains(&version));
        assert!((theirs.lowest..=theirs.highest).contains(&version));
    }
    if let Ok(version) = ours.accept(theirs) {
        assert!(VERSIONS.contains(&version));
        assert_eq!((theirs.lowest, theirs.highest), (version, version));
    }
}

/// What the agent makes of a request.
fn asked(request: &Request, window: u32) {
    assert!(VERSIONS.contains(&request.since()));
    if let Some(payload) = encode_open(window, request) {
        assert_eq!(decode_open(&payload), Some((window, Ok(request.clone()))));
    }
    if let Request::Attach { process } | Request::Input { process } = request {
        let shown = process.to_string();
        match process {
            ProcessRef::Pid(pid) => assert_eq!(shown, format!("process {pid}")),
            ProcessRef::Tag(tag) => assert!(shown.contains(tag.as_str())),
        }
    }
}

/// A message that is one comes back as it was.
fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(json: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(json) else {
        return;
    };
    let again = serde_json::to_vec(&message).expect("a message is JSON");
    assert_eq!(serde_json::from_slice::<T>(&again).ok(), Some(message));
}

/// The options of a machine's command line.
fn options(line: &[u8]) {
    if let Ok(options) = VmOptions::parse(line) {
        assert_eq!(
            VmOptions::parse(options.to_string().as_bytes()),
            Ok(options)
        );
    }
}

/// Inputs to begin with, as (target, name, bytes): each kind of frame, and what is said in it.
#[must_use]
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let hello = Hello::ours().encode();
    let daemon: [(&str, &[&str]); 2] = [
        (
            "requests",
            &[
                r#"{"do":"start","cmd":"sh","args":["-c"],"env":{"A":"b"},"cwd":"/","user":"u","stdin":true,"pty":{"cols":80,"rows":24},"tag":"t"}"#,
                r#"{"do":"attach","process":{"pid":7}}"#,
                r#"{"do":"input","process":{"tag":"t"}}"#,
                r#"{"do":"signal","process":{"pid":7},"signal":9}"#,
                r#"{"do":"resize","process":{"pid":7},"size":{"cols":1,"rows":2}}"#,
                r#"{"do":"processes"}"#,
                r#"{"do":"set_env","env":{"A":"b"}}"#,
            ],
        ),
        (
            "files",
            &[
                r#"{"do":"read_file","path":"a","user":null}"#,
                r#"{"do":"list","path":"/","depth":3}"#,
                r#"{"do":"watch","path":"/","recursive":true}"#,
                r#"{"do":"rename","from":"a","to":"b"}"#,
                r#"{"do":"connect_port","port":80}"#,
                r#"{"do":"set_time","secs":1700000000,"nanos":5}"#,
                r#"{"do":"add_entropy","seed":[0,255]}"#,
                r#"{"do":"metrics"}"#,
                r#"{"do":"sync"}"#,
            ],
        ),
    ];
    let mut all = Vec::new();
    for (name, requests) in daemon {
        let mut bytes = vec![6];
        put(&mut bytes, Kind::Hello, 0, &hello);
        for (channel, request) in (1..).zip(requests) {
            let open = [&100_000u32.to_le_bytes(), request.as_bytes()].concat();
            put(&mut bytes, Kind::Open, channel, &open);
            put(&mut bytes, Kind::Data, channel, b"input");
            put(&mut bytes, Kind::Credit, channel, &64u32.to_le_bytes());
            put(&mut bytes, Kind::Eof, channel, b"");
            put(&mut bytes, Kind::Cancel, channel, b"");
        }
        all.push(("agent", name, bytes));
    }
    let entry = r#"{"name":"a","path":"/a","kind":"file","size":1,"mode":420,"permissions":"-rw-r--r--","owner":"root","group":"root","modified":{"secs":-1,"nanos":2},"symlink_target":"b","target_kind":"other"}"#;
    let events = [
        r#"{"started":{"pid":7,"pty":true}}"#.to_owned(),
        r#"{"lost":{"bytes":9}}"#.to_owned(),
        r#"{"process":{"pid":7,"cmd":"a","args":["b"],"env":{},"cwd":null,"tag":"t"}}"#.to_owned(),
        format!(r#"{{"opened":{entry}}}"#),
        format!(r#"{{"entries":[{entry}]}}"#),
        r#""watching""#.to_owned(),
        r#"{"changed":{"name":".","kind":"overflow","entry":null}}"#.to_owned(),
        r#""connected""#.to_owned(),
    ];
    let ends = [
        r#"{"ok":"done"}"#.to_owned(),
        r#"{"ok":{"exit":{"code":-1,"signal":9}}}"#.to_owned(),
        format!(r#"{{"ok":{{"entry":{entry}}}}}"#),
        r#"{"ok":{"metrics":{"at_secs":1,"cpu_count":1,"cpu_busy_us":1,"cpu_total_us":1,"memory_total":1,"memory_used":1,"memory_cached":1,"disk_total":1,"disk_used":1,"processes":1}}}"#.to_owned(),
        r#"{"failed":{"kind":"not_found","message":"no"}}"#.to_owned(),
    ];
    let mut bytes = vec![9];
    put(&mut bytes, Kind::Hello, 0, &hello);
    for (channel, event) in (1..).zip(&events) {
        put(&mut bytes, Kind::Event, channel, event.as_bytes());
        put(&mut bytes, Kind::Data, channel, b"out");
        put(&mut bytes, Kind::Stderr, channel, b"err");
        put(&mut bytes, Kind::Eof, channel, b"");
    }
    for (channel, end) in (1..).zip(&ends) {
        put(&mut bytes, Kind::End, channel, end.as_bytes());
    }
    all.push(("agent", "answers", bytes));
    let line =
        b"\xffquiet floe.workspace floe.hostname=a-b floe.tmp=memory floe.root_wait=5 x=\"y z\"";
    all.push(("agent", "options", line.to_vec()));
    all
}

fn put(bytes: &mut Vec<u8>, kind: Kind, channel: u32, payload: &[u8]) {
    assert!(encode(kind, channel, payload, bytes), "a frame of {kind:?}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn replay(dir: &Path) -> usize {
        let mut count = 0;
        for entry in std::fs::read_dir(dir).expect("a directory of inputs") {
            let path = entry.expect("an entry").path();
            // Shown if it fails.
            println!("{}", path.display());
            agent(&std::fs::read(&path).expect("a readable input"));
            count += 1;
        }
        count
    }

    #[test]
    fn kept_inputs_do_no_harm() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        assert!(
            replay(&fuzz.join("corpus/agent")) > 0,
            "the corpus is empty"
        );
        let regressions = fuzz.join("regressions/agent");
        if regressions.exists() {
            replay(&regressions);
        }
    }

    #[test]
    fn seeds_do_no_harm_and_are_understood() {
        for (_, name, bytes) in seeds() {
            println!("{name}");
            agent(&bytes);
            if name == "options" {
                assert!(VmOptions::parse(&bytes[1..]).is_ok());
                continue;
            }
            let from = if bytes[0] & 1 == 0 {
                Side::Daemon
            } else {
                Side::Agent
            };
            let (frames, failed) = decode(&bytes[1..], from, 7);
            assert_eq!(failed, None, "{name}");
            for frame in frames {
                let payload = &frame.payload[..];
                match frame.kind {
                    Kind::Open => assert!(matches!(decode_open(payload), Some((_, Ok(_))))),
                    Kind::Event => assert!(serde_json::from_slice::<Event>(payload).is_ok()),
                    Kind::End => assert!(serde_json::from_slice::<End>(payload).is_ok()),
                    _ => {}
                }
            }
        }
    }
}
