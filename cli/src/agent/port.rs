//! Connections to ports in a sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use floe_guest::message::{Event, Outcome, Request};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::channel::{Channel, Sender, Step};
use super::connection::CHANNELS;
use super::error::AgentError;
use super::{Agent, CONTROL, within};

/// Most connections at once: half of the channels that there may be.
pub(super) const CONNECTIONS_MAX: usize = CHANNELS / 2;

/// How much may wait for its reader, in bytes.
const PORT_WINDOW: u32 = 256 * 1024;

/// Bytes between the user of the connection and the task that moves them.
const BUFFER: usize = 64 * 1024;

/// How long what was written before a connection was dropped has to arrive.
const LINGER: Duration = Duration::from_secs(5);

/// A TCP connection to a port in the sandbox. Shutting it down tells the other side that no more
/// comes; dropping it ends the connection, once what was written has arrived or five seconds later.
#[derive(Debug)]
pub struct PortStream {
    io: DuplexStream,
    _dropped: oneshot::Sender<()>,
}

impl Agent {
    /// Connects to a port on the sandbox's loopback, 127.0.0.1 and then ::1.
    ///
    /// # Errors
    ///
    /// [`AgentError::PortClosed`] if nobody listens there, [`AgentError::Exhausted`] if there are too
    /// many connections.
    pub async fn connect_port(&self, port: u16) -> Result<PortStream, AgentError> {
        let Ok(place) = Arc::clone(&self.ports).try_acquire_owned() else {
            return Err(AgentError::Exhausted {
                message: format!("there are {CONNECTIONS_MAX} connections to the sandbox's ports"),
            });
        };
        within(CONTROL, async {
            let request = Request::ConnectPort { port };
            let mut channel = self.open(PORT_WINDOW, &request).await?;
            match channel.event().await? {
                Event::Connected => Ok(run(channel, place)),
                other => Err(channel.unexpected(&Step::Event(other))),
            }
        })
        .await
    }
}

fn run(channel: Channel, place: OwnedSemaphorePermit) -> PortStream {
    let (io, ours) = tokio::io::duplex(BUFFER);
    let (dropped, gone) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let _place = place;
        let (read, write) = tokio::io::split(ours);
        let sender = channel.sender();
        let dropped = async {
            // Resolves with an error, when the other end is dropped.
            if gone.await.is_err() {
                tokio::time::sleep(LINGER).await;
            }
        };
        // Not the end of sending: the other direction may go on. And what goes to somebody who does not
        // read is never sent, so that must not keep the connection.
        let sending = async {
            send(sender, read).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = receive(channel, write) => {}
            () = dropped => {}
            () = sending => {}
        }
    });
    PortStream {
        io,
        _dropped: dropped,
    }
}

/// Moves what comes from the sandbox, until its end. What nobody reads any more is thrown away.
async fn receive(mut channel: Channel, mut write: WriteHalf<DuplexStream>) {
    loop {
        let moved = match channel.next().await {
            Ok(Step::Data(bytes)) => write.write_all(&bytes).await,
            Ok(Step::Eof) => write.shutdown().await,
            Ok(Step::End(Outcome::Done)) | Err(_) => return,
            Ok(other) => {
                tracing::debug!(error = %channel.unexpected(&other), "a port was closed");
                return;
            }
        };
        if let Err(error) = moved {
            tracing::trace!(%error, "nobody reads what a port says");
        }
    }
}

/// Moves what goes to the sandbox, until its end, or until that is not possible any more: then the
/// receiving direction ends too.
async fn send(sender: Sender, mut read: ReadHalf<DuplexStream>) {
    loop {
        let mut bytes = BytesMut::with_capacity(BUFFER);
        let Ok(len) = read.read_buf(&mut bytes).await else {
            return;
        };
        let sent = if len == 0 {
            sender.eof().await
        } else {
            sender.data(bytes.freeze()).await
        };
        if sent.is_err() || len == 0 {
            return;
        }
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
