//! How often files are open for writing. Pure: whoever counts keeps it behind a lock of its own.

use std::collections::HashMap;

use super::OpenMode;
use crate::id::Ino;

/// Openings of one file.
#[derive(Clone, Copy, Default)]
struct Count {
    /// For writing, in any way.
    all: u64,
    /// So that mappings can change the file.
    mapping: u64,
}

/// What was the last of its kind when a descriptor was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    /// The last for writing.
    pub(crate) writer: bool,
    /// The last that mappings can be made of.
    pub(crate) mapper: bool,
}

/// Files open for writing. Only they take up room.
#[derive(Default)]
pub(crate) struct Writers(HashMap<Ino, Count>);

impl Writers {
    /// A file was opened.
    pub(crate) fn opened(&mut self, ino: Ino, mode: OpenMode) {
        if mode.writes() {
            let count = self.0.entry(ino).or_default();
            count.all += 1;
            count.mapping += u64::from(mode.maps());
        }
    }

    /// A descriptor was closed. More than were opened may be, after a connection has ended.
    pub(crate) fn closed(&mut self, ino: Ino, mode: OpenMode) -> Last {
        let mut last = Last {
            writer: false,
            mapper: false,
        };
        if let Some(count) = self.0.get_mut(&ino)
            && mode.writes()
        {
            count.all -= 1;
            last.writer = count.all == 0;
            last.mapper = count.mapping > 0 && (last.writer || mode.maps() && count.mapping == 1);
            count.mapping = count.mapping.saturating_sub(u64::from(mode.maps()));
        }
        if last.writer {
            self.0.remove(&ino);
        }
        last
    }

    /// Whether a file is open for writing.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.0.contains_key(&ino)
    }

    /// Whether mappings can change a file.
    pub(crate) fn maps(&self, ino: Ino) -> bool {
        self.0.get(&ino).is_some_and(|count| count.mapping > 0)
    }

    /// Files that mappings can change.
    pub(crate) fn mapped(&self) -> Vec<Ino> {
        let mapped = self.0.iter().filter(|(_, count)| count.mapping > 0);
        mapped.map(|(&ino, _)| ino).collect()
    }

    /// Every file open for writing.
    pub(crate) fn all(&self) -> Vec<Ino> {
        self.0.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_and_those_that_can_map_are_counted_apart() {
        let last = |writer, mapper| Last { writer, mapper };
        let mut writers = Writers::default();
        writers.opened(Ino(2), OpenMode::Write);
        writers.opened(Ino(3), OpenMode::ReadWrite);
        writers.opened(Ino(3), OpenMode::ReadWrite);
        writers.opened(Ino(3), OpenMode::Write);
        writers.opened(Ino(4), OpenMode::Read);
        assert_eq!(writers.mapped(), [Ino(3)]);
        assert!(writers.has(Ino(2)) && !writers.maps(Ino(2)) && !writers.has(Ino(4)));
        assert_eq!(writers.closed(Ino(3), OpenMode::Read), last(false, false));
        assert_eq!(
            writers.closed(Ino(3), OpenMode::ReadWrite),
            last(false, false)
        );
        assert_eq!(
            writers.closed(Ino(3), OpenMode::ReadWrite),
            last(false, true)
        );
        assert!(writers.has(Ino(3)) && !writers.maps(Ino(3)));
        assert_eq!(writers.closed(Ino(3), OpenMode::Write), last(true, false));
        assert_eq!(writers.closed(Ino(2), OpenMode::Write), last(true, false));
        // One more than came, as after a session that ended in between.
        assert_eq!(
            writers.closed(Ino(3), OpenMode::ReadWrite),
            last(false, false)
        );
        assert!(writers.all().is_empty() && writers.mapped().is_empty());
        writers.opened(Ino(5), OpenMode::ReadWrite);
        assert_eq!(
            writers.closed(Ino(5), OpenMode::ReadWrite),
            last(true, true)
        );
    }
}
