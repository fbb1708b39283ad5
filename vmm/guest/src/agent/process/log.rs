//! The newest output of a process, kept for those who attach.
//!
//! Positions count all bytes that the process ever wrote, stdout and stderr in one sequence.
//! Invariants: `end - start` is the number of bytes held, at most [`CAPACITY`]; the runs cover exactly
//! `start..end`, neighbours are of different streams, and there are at most [`MAX_RUNS`].

use std::collections::VecDeque;

/// Most bytes held.
pub const CAPACITY: usize = 256 * 1024;

/// Most changes from one stream to the other that are held.
pub const MAX_RUNS: usize = 4096;

/// Where output went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// stdout, or the terminal.
    Out,
    /// stderr.
    Err,
}

/// A piece of the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

/// The log.
#[derive(Debug, Default)]
pub struct Log {
    bytes: VecDeque<u8>,
    /// Stream and end position of each run.
    runs: VecDeque<(Stream, u64)>,
    end: u64,
}

fn position(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

impl Log {
    /// Position of the oldest byte held.
    pub fn start(&self) -> u64 {
        self.end - position(self.bytes.len())
    }

    /// Position behind the newest byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How much can be appended without losing what is at or behind `oldest`.
    pub fn room(&self, oldest: u64) -> usize {
        let unsent = usize::try_from(self.end.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let runs = self.runs.iter().rev().take_while(|(_, end)| *end > oldest);
        if runs.count() >= MAX_RUNS {
            return 0;
        }
        CAPACITY.saturating_sub(unsent)
    }

    /// Appends; what is too old falls out.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.extend(bytes);
        self.end += position(bytes.len());
        match self.runs.back_mut() {
            Some((last, end)) if *last == stream => *end = self.end,
            _ => self.runs.push_back((stream, self.end)),
        }
        let mut start = self.end - position(self.bytes.len().min(CAPACITY));
        if self.runs.len() > MAX_RUNS
            && let Some((_, end)) = self.runs.front()
        {
            start = start.max(*end);
        }
        let excess = start - self.start();
        self.bytes.drain(..usize::try_from(excess).unwrap_or(0));
        while self.runs.front().is_some_and(|(_, end)| *end <= start) {
            self.runs.pop_front();
        }
    }

    /// What is at a position, up to `most` bytes of one stream. `None` at the end, and of what has
    /// fallen out.
    pub fn piece(&self, at: u64, most: usize) -> Option<Piece> {
        let start = self.start();
        if at < start {
            return None;
        }
        let run = self.runs.partition_point(|(_, end)| *end <= at);
        let (stream, end) = *self.runs.get(run)?;
        let from = usize::try_from(at - start).ok()?;
        let len = usize::try_from(end - at).ok()?.min(most);
        let (front, back) = self.bytes.as_slices();
        let first = front.get(from..).unwrap_or_default();
        let first = &first[..first.len().min(len)];
        let second = back.get(from.saturating_sub(front.len())..)?;
        let second = &second[..second.len().min(len - first.len())];
        Some(Piece {
            stream,
            bytes: [first, second].concat(),
        })
    }

    /// Gives back memory that is not needed when nothing more is appended.
    pub fn close(&mut self) {
        self.bytes.shrink_to_fit();
        self.runs.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(log: &Log, mut at: u64, step: usize) -> Vec<(Stream, u8)> {
        let mut found = Vec::new();
        while let Some(piece) = log.piece(at, step) {
            assert!(!piece.bytes.is_empty() && piece.bytes.len() <= step);
            at += position(piece.bytes.len());
            found.extend(piece.bytes.iter().map(|byte| (piece.stream, *byte)));
        }
        assert_eq!(at, log.end());
        found
    }

    #[test]
    fn the_newest_is_kept() {
        let mut log = Log::default();
        log.push(Stream::Out, &vec![b'a'; CAPACITY]);
        log.push(Stream::Err, b"bcd");
        assert_eq!(log.start(), 3);
        assert_eq!(log.len(), CAPACITY);
        assert_eq!(log.piece(0, 10), None);
        let tail = log.piece(log.end() - 2, 10).unwrap();
        assert_eq!((tail.stream, tail.bytes), (Stream::Err, b"cd".to_vec()));
        assert_eq!(log.piece(log.end(), 10), None);
    }

    #[test]
    fn many_changes_of_stream_are_bounded_too() {
        let mut log = Log::default();
        for _ in 0..MAX_RUNS {
            log.push(Stream::Out, b"a");
            log.push(Stream::Err, b"b");
        }
        assert_eq!(log.len(), MAX_RUNS);
        assert_eq!(log.room(0), 0);
        assert_eq!(log.room(log.end()), CAPACITY);
        assert_eq!(all(&log, log.start(), 9).len(), MAX_RUNS);
    }

    #[test]
    fn what_is_pushed_into_the_room_throws_nothing_away_that_is_not_sent() {
        let mut log = Log::default();
        log.push(Stream::Out, &vec![b'a'; CAPACITY]);
        let sent = 1000;
        assert_eq!(log.room(sent), 1000);
        log.push(Stream::Err, &[b'b'; 1000]);
        assert_eq!(log.start(), sent);
        assert_eq!(log.room(sent), 0);
    }

    fn stream() -> impl Strategy<Value = Stream> {
        prop_oneof![Just(Stream::Out), Just(Stream::Err)]
    }

    proptest! {
        #[test]
        fn the_log_is_the_tail_of_all_that_was_written(
            pushes in proptest::collection::vec(
                (stream(), any::<u8>(), prop_oneof![0usize..40, 0usize..150_000]),
                0..40,
            ),
            step in 1usize..70_000,
        ) {
            let mut log = Log::default();
            let mut model: Vec<(Stream, u8)> = Vec::new();
            for (stream, byte, len) in pushes {
                log.push(stream, &vec![byte; len]);
                model.extend(std::iter::repeat_n((stream, byte), len));
            }
            prop_assert_eq!(log.end(), position(model.len()));
            let tail = &model[model.len() - model.len().min(CAPACITY)..];
            prop_assert_eq!(all(&log, log.start(), step), tail);
        }
    }
}
