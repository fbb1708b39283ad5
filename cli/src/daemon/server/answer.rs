//! From a request to the lines that answer it.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use tracing::{error, info, warn};

use super::super::{Daemon, handlers};
use crate::error::{ApiError, ErrorKind};
use crate::wire::{Progress, Reply, Request, line};

/// Handles a request and writes its answer; a panic becomes an answer as well.
pub(super) fn catch(daemon: &Daemon, request: Request, stream: &mut UnixStream) -> io::Result<()> {
    match catch_unwind(AssertUnwindSafe(|| dispatch(daemon, request, stream))) {
        Ok(written) => written,
        Err(_) => panicked(stream),
    }
}

/// Tells a client that its handler panicked.
pub(super) fn panicked(stream: &mut UnixStream) -> io::Result<()> {
    error!("a handler panicked; see above");
    let error = ApiError::new(ErrorKind::Internal, "the daemon hit a bug in Floe")
        .hint("the daemon's log has the details; please report it");
    line::write(stream, &Reply::<()>::Error(error))
}

fn dispatch(daemon: &Daemon, request: Request, stream: &mut UnixStream) -> io::Result<()> {
    use Request as R;
    match request {
        R::Status(request) => answer(stream, handlers::status(daemon, &request)),
        R::Stop(request) => answer(stream, handlers::stop(daemon, &request)),
        R::CheckStore(request) => with_progress(stream, |_, on_progress| {
            handlers::check_store(daemon, &request, on_progress)
        }),
        R::RepairStore(request) => with_progress(stream, |_, on_progress| {
            handlers::repair_store(daemon, &request, on_progress)
        }),
        R::CreateWorkspace(request) => answer(stream, handlers::create_workspace(daemon, &request)),
        R::ImportWorkspace(request) => with_progress(stream, |is_there, on_progress| {
            handlers::import_workspace(daemon, &request, is_there, on_progress)
        }),
        R::CreateWorkspaceFrom(request) => {
            answer(stream, handlers::create_workspace_from(daemon, &request))
        }
        R::AdoptWorkspace(request) => with_progress(stream, |is_there, on_progress| {
            handlers::adopt_workspace(daemon, &request, is_there, on_progress)
        }),
        R::ListWorkspaces(request) => answer(stream, handlers::list_workspaces(daemon, &request)),
        R::ShowWorkspace(request) => answer(stream, handlers::show_workspace(daemon, &request)),
        R::SetQuota(request) => answer(stream, handlers::set_quota(daemon, &request)),
        R::RenameWorkspace(request) => answer(stream, handlers::rename_workspace(daemon, &request)),
        R::DeleteWorkspace(request) => answer(stream, handlers::delete_workspace(daemon, &request)),
        R::Mount(request) => answer(stream, handlers::mount(daemon, &request)),
        R::Umount(request) => answer(stream, handlers::umount(daemon, &request)),
        R::TakeSnapshot(request) => answer(stream, handlers::snapshot(daemon, request)),
        R::Fork(request) => answer(stream, handlers::fork(daemon, &request)),
        R::Rollback(request) => answer(stream, handlers::rollback(daemon, &request)),
        R::Land(request) => answer(stream, handlers::land(daemon, &request)),
        R::UndoLanding(request) => answer(stream, handlers::undo_landing(daemon, &request)),
        R::Diff(request) => answer(stream, handlers::diff(daemon, &request)),
        R::DiffFile(request) => answer(stream, handlers::diff_file(daemon, &request)),
        R::Log(request) => answer(stream, handlers::log(daemon, &request)),
        R::ListSnapshots(request) => answer(stream, handlers::list_snapshots(daemon, request)),
        R::EditSnapshots(request) => answer(stream, handlers::edit_snapshots(daemon, request)),
        R::ShowRetention(request) => answer(stream, handlers::show_retention(daemon, &request)),
        R::SetRetention(request) => answer(stream, handlers::set_retention(daemon, &request)),
        R::ClearRetention(request) => answer(stream, handlers::clear_retention(daemon, &request)),
        R::ApplyRetention(request) => answer(stream, handlers::apply_retention(daemon, &request)),
        R::DeleteSnapshots(request) => with_progress(stream, |_, on_progress| {
            handlers::delete_snapshots(daemon, request, on_progress)
        }),
        R::Sizes(request) => with_progress(stream, |_, on_progress| {
            handlers::sizes(daemon, &request, on_progress)
        }),
        R::Usage(request) => with_progress(stream, |_, on_progress| {
            handlers::usage(daemon, &request, on_progress)
        }),
        R::Collect(request) => with_progress(stream, |_, on_progress| {
            handlers::collect(daemon, &request, on_progress)
        }),
        R::HashNow(request) => with_progress(stream, |_, on_progress| {
            handlers::hash_now(daemon, &request, on_progress)
        }),
        R::StoreConfig(request) => answer(stream, handlers::store_config(daemon, &request)),
        R::ShowSnapshot(request) => answer(stream, handlers::show_snapshot(daemon, &request)),
        R::CreateSandbox(request) => answer(stream, handlers::create_sandbox(daemon, &request)),
        R::ListSandboxes(request) => answer(stream, handlers::list_sandboxes(daemon, &request)),
        R::ShowSandbox(request) => answer(stream, handlers::show_sandbox(daemon, &request)),
        // Not one to be answered and done with: see `exec`.
        R::SandboxExec(_) => answer::<()>(
            stream,
            Err(ApiError::new(ErrorKind::Internal, "a command went astray")),
        ),
        R::MeasureSandbox(request) => answer(stream, handlers::measure_sandbox(daemon, &request)),
        R::PauseSandbox(request) => answer(stream, handlers::pause_sandbox(daemon, &request)),
        R::ResumeSandbox(request) => answer(stream, handlers::resume_sandbox(daemon, &request)),
        R::SnapshotSandbox(request) => as_long_as_wanted(stream, |is_there| {
            handlers::snapshot_sandbox(daemon, &request, is_there)
        }),
        R::ForkSandbox(request) => as_long_as_wanted(stream, |is_there| {
            handlers::fork_sandbox(daemon, &request, is_there)
        }),
        R::RollbackSandbox(request) => answer(stream, handlers::rollback_sandbox(daemon, &request)),
        R::KillSandbox(request) => answer(stream, handlers::kill_sandbox(daemon, &request)),
        R::InstallKernel(request) => answer(stream, handlers::install_kernel(daemon, &request)),
        R::ShowKernel(_) => answer(stream, handlers::show_kernel(daemon)),
        R::ReadConsole(request) => answer(stream, handlers::read_console(daemon, &request)),
        R::SandboxLogs(request) => answer(stream, handlers::sandbox_logs(daemon, &request)),
        R::ListTemplates(request) => answer(stream, handlers::list_templates(daemon, &request)),
        R::BuildTemplate(request) => answer(stream, handlers::build_template(daemon, &request)),
        R::DeleteTemplate(request) => answer(stream, handlers::delete_template(daemon, &request)),
    }
}

fn answer<T: Serialize>(stream: &mut UnixStream, result: Result<T, ApiError>) -> io::Result<()> {
    match result {
        Ok(answer) => line::write(stream, &Reply::Ok(answer)),
        Err(error) => {
            if error.kind == ErrorKind::Failed {
                warn!(error = error.error, causes = ?error.causes, "a request failed");
            }
            line::write(stream, &Reply::<()>::Error(error))
        }
    }
}

/// Least time between two reports to a client.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Answers a request that takes long. What it is handed may be told of progress as often as there is any, and
/// says whether anybody still waits.
fn with_progress<T: Serialize>(
    stream: &mut UnixStream,
    handle: impl FnOnce(&dyn Fn() -> bool, &mut dyn FnMut(&Progress) -> bool) -> Result<T, ApiError>,
) -> io::Result<()> {
    let peer = stream.try_clone()?;
    let mut gone: Option<io::Error> = None;
    let mut told = Instant::now();
    let result = handle(&|| is_there(&peer), &mut |progress| {
        if told.elapsed() < REPORT_EVERY {
            return true;
        }
        told = Instant::now();
        gone = match is_there(&peer) {
            true => line::write(stream, &Reply::<()>::Progress(progress.clone())).err(),
            false => Some(io::ErrorKind::BrokenPipe.into()),
        };
        gone.is_none()
    });
    if result
        .as_ref()
        .is_err_and(|error| error.kind == ErrorKind::Interrupted)
    {
        info!("the client went away before the end");
    }
    match gone {
        Some(error) => Err(error),
        None => answer(stream, result),
    }
}

/// Answers a request that is given up when nobody waits for it any more, which what it is handed tells.
fn as_long_as_wanted<T: Serialize>(
    stream: &mut UnixStream,
    handle: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ApiError>,
) -> io::Result<()> {
    let peer = stream.try_clone()?;
    answer(stream, handle(&|| is_there(&peer)))
}

/// Whether the client has not closed its end: an interrupted one does so by ending.
fn is_there(peer: &UnixStream) -> bool {
    let mut fds = [PollFd::new(peer, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        Err(error) => {
            warn!(%error, "cannot tell whether a client is still there");
            true
        }
    }
}
