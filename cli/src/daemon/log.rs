//! The daemon's log, on stderr: for people or as JSON. What is logged while a request is worked on
//! stands in a span with the request's id, whichever way the request came.

use tracing::warn;
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogSettings};
use crate::output::Output;

/// The variable that says what is logged, whatever the configuration says.
const FILTER_VARIABLE: &str = "FLOE_LOG";

/// Begins to log. Only the first call does anything.
pub(super) fn start(settings: &LogSettings, output: &Output) {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE)
        .or_else(|_| EnvFilter::try_new(&settings.filter))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A log on a full disk is lost, silently: the complaint about it would go to stderr too,
        // fail as well, and panic in whichever thread had something to say.
        .log_internal_errors(false)
        .with_ansi(output.colors_stderr());
    let started = match settings.format {
        LogFormat::Human => subscriber.try_init(),
        LogFormat::Json => subscriber
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .try_init(),
    };
    if started.is_err() {
        warn!("a log is set up already");
    }
}
