//! Saving a connection, and going on with it elsewhere.
//!
//! Invariant: a server that begins in a saved state holds exactly what the state says, and returns it at its
//! end like any other; one that could not begin holds nothing, and nothing was reclaimed on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Caching, Captured, RestoreStateError, Server, ServerOptions, ServerState};
use crate::dispatch::{Dispatch, Errno, OpError};

impl Server {
    /// The connection as it is now.
    ///
    /// Waits for requests that are being served, and none is served meanwhile; the caller sees to it that none
    /// comes later that the guest has sent before the moment that is to be saved. Answers tell which requests
    /// have been served. A FORGET has none: it has been served when a request has been answered that was sent
    /// after it (any will do, the monitor's own as well).
    ///
    /// Not to be called by what is done in [`KernelCache::paused`](crate::dispatch::KernelCache::paused), which
    /// waits for the same.
    ///
    /// This copies and does nothing else, as the guest stands still meanwhile: making a [`ServerState`] of it
    /// can wait.
    #[must_use]
    pub fn capture(&self) -> Captured {
        let _paused = self.serving.write();
        let mut nodes = self.nodes.counts();
        if self.taken_back.load(Ordering::Acquire) {
            // A rollback can take away what the guest holds, which is no use to it any more, there or here.
            nodes.retain(|&(ino, _)| {
                let there = self.attempt("getattr", ino, |fs| fs.getattr(ino));
                there.err() != Some(Errno(libc::ESTALE))
            });
        }
        let ServerOptions {
            caching, read_only, ..
        } = self.options;
        Captured {
            agreed: *self.agreed.read(),
            caching,
            read_only,
            nodes,
            opens: self.opens.counts(),
        }
    }

    /// As [`Server::capture`], made a state of at once.
    #[must_use]
    pub fn save(&self) -> ServerState {
        self.capture().into()
    }

    /// A server that goes on where another one was saved: it holds the same inodes and has the same files open,
    /// and the guest mounts nothing anew. The view has to show what the other one's did at that moment: it
    /// is of a fork of the snapshot that was taken then, or of the snapshot itself.
    ///
    /// To be called before the view is closed for the first time: what is unlinked in it and held by nobody
    /// is reclaimed then.
    ///
    /// # Errors
    /// [`RestoreStateError`]: the options are others than the guest's kernel relies on, or allow less than it
    /// holds; or the state is not one of this view.
    pub fn restore(
        dispatch: Arc<dyn Dispatch>,
        options: ServerOptions,
        state: &ServerState,
    ) -> Result<Arc<Self>, RestoreStateError> {
        fits(&options, state)?;
        // From here on, whatever it has taken is returned when it is dropped.
        let server = Self::new(dispatch, options);
        for &(ino, mode, count) in state.opens() {
            let failed = |source| match source {
                OpError::Stale(ino) => RestoreStateError::NoInode { ino },
                source => RestoreStateError::Open { ino, mode, source },
            };
            for _ in 0..count {
                server.dispatch.open(ino, mode).map_err(failed)?;
                if !server.opens.open(ino, mode) {
                    server.dispatch.release(ino, mode);
                }
            }
        }
        // The last that can fail: returning a reference can be the end of what is unlinked.
        let taken = server.dispatch.reference(state.nodes());
        taken.map_err(|source| match source {
            OpError::Stale(ino) => RestoreStateError::NoInode { ino },
            source => RestoreStateError::Reference(source),
        })?;
        for &(ino, count) in state.nodes() {
            server.nodes.take_all(ino, count);
        }
        *server.agreed.write() = state.agreed();
        Ok(server)
    }
}

/// Whether a guest in that state can be served so.
fn fits(options: &ServerOptions, state: &ServerState) -> Result<(), RestoreStateError> {
    let (saved, asked) = (state.caching(), options.caching);
    let believes_no_longer = match (saved, asked) {
        (Caching::Shared { ttl: saved }, Caching::Shared { ttl: asked }) => saved <= asked,
        (Caching::OnlyWriter, Caching::OnlyWriter) => true,
        // What was agreed on is another: who appends where, and which pages go when.
        _ => false,
    };
    if !believes_no_longer {
        return Err(RestoreStateError::Caching { saved, asked });
    }
    if state.read_only() != options.read_only {
        let saved = state.read_only();
        return Err(RestoreStateError::ReadOnly { saved });
    }
    let (held, max) = (state.nodes().len(), options.nodes_max);
    if held > max {
        return Err(RestoreStateError::TooManyNodes { held, max });
    }
    let (open, max) = (state.opens_total(), options.opens_max);
    if open > max as u64 {
        return Err(RestoreStateError::TooManyOpens { open, max });
    }
    Ok(())
}
