//! The harness that Floe's integration tests (`tests/`) and benches (`benches/`) share.
//!
//! A test makes a [`TestStore`], which is a store in a directory of its own, served by a daemon of
//! its own. It drives Floe only as a user does, through the `floe` binary, and looks at the result
//! only through the mounted file system:
//!
//! ```no_run
//! use floe_harness::{ScanOptions, TestStore, Tree};
//!
//! let store = TestStore::new();
//! store.ok(["ws", "create", "w"]);
//! let live = store.mount("w");
//! std::fs::write(live.join("a"), "1").unwrap();
//! let snapshot = store.snapshot("w");
//! let frozen = store.mount(&snapshot);
//! Tree::scan(&live, ScanOptions::ALL).assert_same(&Tree::scan(&frozen, ScanOptions::ALL));
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`requirements`] | what a machine must have; a test without it fails, it is never skipped |
//! | [`binary`] | the `floe` binary under test |
//! | [`store`] | [`TestStore`]: a store, its daemon and mounts, and how they end |
//! | [`command`] | running a program with a time limit, and what it printed |
//! | [`process`] | finding and signalling the processes of one store |
//! | [`faults`] | asking the daemon to go wrong |
//! | [`frozen`] | what frozen layers hold, straight from catalog and objects |
//! | [`disk`] | a small ext4 or XFS of its own in an image file |
//! | [`mounts`] | the kernel's mount table, unmounting by force |
//! | [`snapshots`] | snapshots taken while something works, and whether they stay what they were |
//! | [`tree`] | everything that can be read of a directory tree, its digest, and differences |
//! | [`xattrs`] | extended attributes as a sorted map |
//! | [`workload`] | random operations from a seed, numbered files, load in the background |
//! | [`python`] | a process of its own for mappings, record locks, SQLite |
//! | [`sandbox`] | [`Server`]: a store with its HTTP interface, and sandboxes in it |
//! | [`api`] | requests to that interface |
//! | [`leftovers`] | what sandboxes have of the host, and must not leave there |
//! | [`packages`] | Python's and JavaScript's packages, installed for tests |
//! | [`recorder`] | a disk that remembers, for what a power failure would leave |
//! | [`watchdog`] | ends a hang and says where every thread waits |
//! | [`random`] | the small seeded generator behind them |
//!
//! Rules: nothing here ends a process or removes a mount that does not belong to the test's own
//! directory, and a failed helper panics with everything needed to see why.

#![forbid(unsafe_code)]

pub mod api;
pub mod binary;
pub mod command;
pub mod disk;
pub mod faults;
pub mod frozen;
pub mod leftovers;
pub mod mounts;
pub mod packages;
pub mod process;
pub mod python;
pub mod random;
pub mod recorder;
pub mod requirements;
pub mod sandbox;
pub mod snapshots;
pub mod store;
pub mod tree;
pub mod watchdog;
pub mod workload;
pub mod xattrs;

pub use api::Api;
pub use command::Output;
pub use disk::Disk;
pub use faults::Faults;
pub use frozen::FrozenLayers;
pub use python::Python;
pub use recorder::Recorder;
pub use requirements::{long_run, require_root_and_fuse};
pub use sandbox::Server;
pub use snapshots::Snapshots;
pub use store::TestStore;
pub use tree::{ScanOptions, Tree};
pub use watchdog::Watchdog;
pub use workload::{Load, Numbered, Operations};
