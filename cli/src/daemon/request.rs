//! A name for every request, so that what the log says of one can be found.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new id: eight hexadecimal digits that this daemon drew by chance, and a number. It is not a
/// secret, and says nothing but which request of which daemon it was.
#[must_use]
pub fn next_id() -> String {
    static DAEMON: OnceLock<u32> = OnceLock::new();
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    // Without chance the process has to do: ids of two daemons then differ if their numbers do.
    let daemon = DAEMON.get_or_init(|| getrandom::u32().unwrap_or_else(|_| std::process::id()));
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{daemon:08x}-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_daemon_begin_alike_and_differ() {
        let (one, other) = (next_id(), next_id());
        assert_ne!(one, other);
        assert_eq!(one.split_once('-').unwrap().0.len(), 8);
        assert_eq!(one[..9], other[..9]);
    }
}
