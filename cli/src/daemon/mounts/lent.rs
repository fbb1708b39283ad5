//! What a virtual machine has of a store: one workspace, served over a socket instead of mounted.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use floe_fs::Attachment;
use floe_fs::dispatch::Dispatch;
use floe_fs::dispatch::wire::{Captured, Server, ServerOptions, ServerState};
use tracing::{debug, warn};

use super::slot::Slot;
use super::{Mounts, Subject};
use crate::error::{ApiError, ErrorKind};

/// A workspace that a virtual machine has for itself. Dropped, the connection ends, and the workspace
/// can be mounted again.
pub(crate) struct Lent {
    mounts: Arc<Mounts>,
    slot: Arc<Slot>,
    socket: UnixStream,
    thread: Option<JoinHandle<()>>,
    server: Arc<Server>,
    // Given up before the slot is.
    attachment: Option<Attachment>,
}

impl Mounts {
    /// Serves a workspace to whoever is at the other end of a socket, and to nobody else meanwhile. `state`:
    /// what the server of the same files knew that a guest goes on from.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when it is mounted, or in another machine.
    pub(crate) fn lend(
        self: &Arc<Self>,
        subject: &Subject,
        socket: UnixStream,
        options: ServerOptions,
        state: Option<&ServerState>,
    ) -> Result<Lent, ApiError> {
        let failed = |error: std::io::Error| {
            ApiError::new(ErrorKind::Failed, "cannot serve a virtual machine").caused_by(&error)
        };
        let ours = socket.try_clone().map_err(failed)?;
        let slot = self.slot(subject.target());
        let view = slot.lend(self, subject);
        if view.is_err() {
            self.prune(&slot);
        }
        let view = view?;
        let dispatch = Arc::clone(&view) as Arc<dyn Dispatch>;
        let server = match state {
            None => Ok(Server::new(dispatch, options)),
            Some(state) => Server::restore(dispatch, options, state),
        };
        let server = server.map_err(|error| {
            slot.take_back(self);
            self.prune(&slot);
            ApiError::new(
                ErrorKind::Failed,
                "a virtual machine cannot go on with its files",
            )
            .caused_by(&error)
        })?;
        let mut lent = Lent {
            mounts: Arc::clone(self),
            slot,
            socket: ours,
            thread: None,
            server: Arc::clone(&server),
            attachment: None,
        };
        lent.attachment = Some(view.attach(server.kernel_cache()));
        let label = subject.label().to_owned();
        let thread = std::thread::Builder::new().name("floe-vm-fs".to_owned());
        let serve = move || match server.serve(socket) {
            Ok(()) => debug!(
                workspace = label,
                "a virtual machine's file system has ended"
            ),
            Err(error) => {
                warn!(workspace = label, %error, "a virtual machine's file system has ended")
            }
        };
        lent.thread = Some(thread.spawn(serve).map_err(failed)?);
        Ok(lent)
    }
}

impl Lent {
    /// What the server knows of the guest, which stands still.
    pub(crate) fn capture(&self) -> Captured {
        self.server.capture()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(error) = self.socket.shutdown(Shutdown::Both) {
            debug!(%error, "the machine has let go already");
        }
        // Every request has been answered then.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("a virtual machine's file system failed; see above");
        }
        self.attachment = None;
        self.slot.take_back(&self.mounts);
        self.mounts.prune(&self.slot);
    }
}
