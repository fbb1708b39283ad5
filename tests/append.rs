//! Writes through descriptors that append.

use std::fs;

use floe_harness::python::path;
use floe_harness::{Python, TestStore};

/// The kernel sends one large direct write as several requests at once.
#[test]
fn a_large_direct_append_keeps_the_order_of_its_bytes() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let mut python = Python::start();
    python.ok("buffer = mmap.mmap(-1, 8 << 20)
for at in range(8): buffer[at << 20 : (at + 1) << 20] = bytes([at + 1]) * (1 << 20)");
    for round in 0..20 {
        let file = live.join(format!("direct{round}"));
        python.ok(&format!(
            "fd = os.open({}, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DIRECT)
assert os.write(fd, buffer) == 8 << 20
os.close(fd)",
            path(&file)
        ));
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len(), 8 << 20);
        let order: Vec<u8> = bytes.chunks(1 << 20).map(|chunk| chunk[0]).collect();
        assert_eq!(order, [1, 2, 3, 4, 5, 6, 7, 8], "round {round}");
    }
}

#[test]
fn a_write_at_a_place_of_its_own_does_not_append() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let file = store.mount("w").join("file");
    fs::write(&file, "0123456789").unwrap();
    let mut python = Python::start();
    // 0x20 is RWF_NOAPPEND of linux/fs.h.
    python.ok(&format!(
        "fd = os.open({}, os.O_WRONLY | os.O_APPEND)
os.pwritev(fd, [b'XX'], 0, 0x20)
os.write(fd, b'end')",
        path(&file)
    ));
    assert_eq!(fs::read_to_string(&file).unwrap(), "XX23456789end");
}
