//! A connection whose client must ask for something soon, and take what it is sent: one that does not for
//! too long is closed, and with it ends what it held open in the daemon and in a sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream with a limit on how long a write may wait for room.
pub(super) struct Timed<S> {
    stream: S,
    write_wait_max: Duration,
    /// When the write that waits is given up.
    give_up: Pin<Box<Sleep>>,
    /// Whether one waits.
    waits: bool,
    /// Until when there must be a first request, and whether there was one.
    first: Option<(Pin<Box<Sleep>>, Arc<AtomicBool>)>,
}

impl<S> Timed<S> {
    /// A stream on which no write may wait longer than this.
    pub(super) fn new(stream: S, write_wait_max: Duration) -> Self {
        Self {
            stream,
            write_wait_max,
            give_up: Box::pin(tokio::time::sleep(write_wait_max)),
            waits: false,
            first: None,
        }
    }

    /// The same with a limit on how long it takes until a request has come, as `has_come` says. It may not
    /// be set again.
    pub(super) fn with_first(mut self, wait_max: Duration, has_come: Arc<AtomicBool>) -> Self {
        self.first = Some((Box::pin(tokio::time::sleep(wait_max)), has_come));
        self
    }

    /// Whether the first request is overdue.
    fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        let Some((give_up, has_come)) = &mut self.first else {
            return false;
        };
        if has_come.load(Ordering::Relaxed) {
            self.first = None;
            return false;
        }
        give_up.as_mut().poll(context).is_ready()
    }

    /// What comes of a write, given what the stream says.
    fn limited<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !self.waits {
            self.waits = true;
            self.give_up
                .as_mut()
                .reset(Instant::now() + self.write_wait_max);
        }
        ready!(self.give_up.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() && self.is_overdue(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.limited(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.limited(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.limited(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(10);
        let mut timed = Timed::new(ours, LIMIT);
        let error = timed.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_be_slow_as_long_as_it_takes_something() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut timed = Timed::new(ours, LIMIT);
        let reader = tokio::spawn(async move {
            let mut taken = 0;
            let mut piece = [0; 10];
            while taken < 100 {
                tokio::time::sleep(LIMIT / 2).await;
                taken += theirs.read(&mut piece).await.unwrap();
            }
        });
        timed.write_all(&[0; 100]).await.unwrap();
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_for_nothing_is_given_up_and_one_that_has_asked_may_rest() {
        let mut piece = [0; 10];
        let (ours, _theirs) = tokio::io::duplex(10);
        let asked = Arc::new(AtomicBool::new(false));
        let mut timed = Timed::new(ours, LIMIT).with_first(LIMIT, asked.clone());
        let error = timed.read(&mut piece).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let (ours, _theirs) = tokio::io::duplex(10);
        asked.store(true, Ordering::Relaxed);
        let mut timed = Timed::new(ours, LIMIT).with_first(LIMIT, asked);
        let rest = tokio::time::timeout(LIMIT * 100, timed.read(&mut piece));
        assert!(rest.await.is_err());
    }
}
