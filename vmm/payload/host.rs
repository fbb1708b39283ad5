//! What tests and benches of the payload guest share on the host's side: a machine that runs it, and
//! a file system's server that knows no operation.

#[path = "compile.rs"]
mod compile;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use floe_vmm::boot::Payload;
use floe_vmm::devices::serial::SharedConsole;
use floe_vmm::devices::virtio::fs::FsTag;
use floe_vmm::devices::virtio::fs::frame::{HEADER_LEN, Header, Kind, OUT_HEADER_LEN};
use floe_vmm::kvm::HostPaths;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::memory::{RamSize, VcpuCount};
use floe_vmm::machine::{Config, DevicesConfig, FsConfig, Machine};

/// `ENOSYS` as a reply says it.
const ENOSYS: i32 = -38;

/// This machine's KVM; says why if there is none.
pub fn kvm() -> Option<Host> {
    Host::open(&HostPaths::default())
        .inspect_err(|error| eprintln!("not done here: {error}"))
        .ok()
}

/// The payload guest, compiled.
pub fn payload() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("payload");
    compile::payload(&sources, Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// A machine that has not started and will do what `cmdline` says.
pub fn built(host: &Host, cmdline: &str, mib: u32, vcpus: u8, devices: DevicesConfig) -> Machine {
    let config = Config {
        ram: RamSize::from_mib(mib).expect("within the limits"),
        vcpus: VcpuCount::new(vcpus).expect("within the limits"),
        payload: Payload {
            kernel: File::open(payload()).expect("the payload is there"),
            initramfs: None,
            cmdline: cmdline.to_owned(),
        },
        console: SharedConsole::default(),
        devices,
    };
    Machine::new(host, config).expect("a machine")
}

/// A file system and the socket to it, for a server.
pub fn file_system() -> (FsConfig, UnixStream) {
    let (server, device) = UnixStream::pair().expect("a socket");
    let config = FsConfig {
        tag: FsTag::new("workspace").expect("a tag"),
        server: device,
    };
    (config, server)
}

/// Reads a frame; `None` when the machine is gone.
pub fn request(server: &mut UnixStream) -> Option<(Header, Vec<u8>)> {
    let mut head = [0; HEADER_LEN];
    server.read_exact(&mut head).ok()?;
    let header = Header::decode(&head).expect("a frame");
    let mut body = vec![0; header.body_len as usize];
    server.read_exact(&mut body).ok()?;
    Some((header, body))
}

/// Answers what [`request`] read with `ENOSYS`, if it takes an answer.
pub fn refuse(server: &mut UnixStream, header: Header, body: &[u8]) -> Option<()> {
    if header.kind != Kind::Request || (header.reply_max as usize) < OUT_HEADER_LEN {
        return Some(());
    }
    let reply = Header {
        kind: Kind::Reply,
        body_len: 16,
        queue: 0,
        reply_max: 0,
        ..header
    };
    let mut out = reply.encode().to_vec();
    out.extend(16u32.to_le_bytes());
    out.extend(ENOSYS.to_le_bytes());
    out.extend(&body[8..16]);
    server.write_all(&out).ok()
}

/// Reads a frame and answers it with `ENOSYS`; `None` when the machine is gone.
pub fn serve(server: &mut UnixStream) -> Option<Header> {
    let (header, body) = request(server)?;
    refuse(server, header, &body)?;
    Some(header)
}
