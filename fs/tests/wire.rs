//! A guest's connection: every kind of request, the same work done directly and as a guest, and guests that
//! send what no kernel would.
//!
//! The client has a codec of its own (wire/frame.rs). common/sequences.rs says which variables repeat a
//! random test.

mod common;
#[path = "model/mod.rs"]
mod model;

#[path = "wire/client.rs"]
mod client;
#[path = "wire/differential.rs"]
mod differential;
#[path = "wire/frame.rs"]
mod frame;
#[path = "wire/hooked.rs"]
mod hooked;
#[path = "wire/hostile.rs"]
mod hostile;
#[path = "wire/limits.rs"]
mod limits;
#[path = "wire/opcodes.rs"]
mod opcodes;
#[path = "wire/remote.rs"]
mod remote;
#[path = "wire/saved.rs"]
mod saved;
#[path = "wire/saved_space.rs"]
mod saved_space;
#[path = "wire/session.rs"]
mod session;

use std::path::Path;
use std::sync::Arc;

use floe_fs::{Store, View};

/// A store with an empty workspace.
fn workspace(dir: &Path) -> (Arc<Store>, Arc<View>) {
    let store = common::new_store(&dir.join("s"));
    store.create_workspace(&common::name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    (store, view)
}
