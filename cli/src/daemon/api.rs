//! The HTTP API as a part of the daemon's life: its address is taken before the store is touched, it
//! is served once the daemon can answer, and ends before anything that it needs does.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use super::Daemon;
use crate::api::{ApiServer, Keys};
use crate::config::ApiConfig;
use crate::error::{ApiError, ErrorKind};

/// An API that is served.
pub(super) struct ServedApi {
    /// Where it is.
    pub(super) url: String,
    /// What names of sandboxes end with; empty if there is no domain.
    pub(super) domain: String,
    server: ApiServer,
}

/// Takes the address.
///
/// # Errors
/// When it is taken, none of this machine's, or one that others reach and must not.
pub(super) fn listen(config: &ApiConfig) -> Result<TcpListener, ApiError> {
    let addr = config.addr;
    if !addr.ip().is_loopback() && !config.allow_remote {
        let what = format!("other machines could reach {addr}");
        return Err(ApiError::new(ErrorKind::Usage, what).hint(
            "traffic is not encrypted: put something that ends TLS in front of a loopback address, or set \
             allow_remote = true under [api] in the configuration file",
        ));
    }
    TcpListener::bind(addr).map_err(|error| {
        let what = format!("cannot listen on {addr}");
        let (kind, hint) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                ErrorKind::Conflict,
                format!(
                    "see who does with `ss -ltnp 'sport = :{}'`, or pick another port with --addr",
                    addr.port()
                ),
            ),
            _ => (
                ErrorKind::Failed,
                "name another address with --addr, or in the configuration file".to_owned(),
            ),
        };
        ApiError::new(kind, what).caused_by(&error).hint(hint)
    })
}

/// Serves the HTTP API.
///
/// # Errors
/// When the keys cannot be read, or there are no threads for it.
pub(super) fn serve_api(
    daemon: &Arc<Daemon>,
    listener: TcpListener,
    config: &ApiConfig,
) -> Result<ServedApi, ApiError> {
    let keys = Keys::open(daemon.store.dir())?;
    let server = ApiServer::start(Arc::clone(daemon), listener, config, keys)?;
    let address = server.address();
    let local = || {
        address
            .ip()
            .is_loopback()
            .then(|| format!("localhost:{}", address.port()))
    };
    Ok(ServedApi {
        url: format!("http://{address}"),
        domain: config.domain.clone().or_else(local).unwrap_or_default(),
        server,
    })
}

impl ServedApi {
    /// Takes no further requests, and lets those at work finish for a while. Returns whether all did.
    pub(super) fn end(self) -> bool {
        self.server.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addr: &str, allow_remote: bool) -> Result<TcpListener, ApiError> {
        listen(&ApiConfig {
            addr: addr.parse().unwrap(),
            allow_remote,
            ..ApiConfig::default()
        })
    }

    #[test]
    fn an_address_that_is_taken_is_a_conflict_and_one_of_elsewhere_a_failure() {
        let first = at("127.0.0.1:0", false).unwrap();
        let taken = first.local_addr().unwrap().to_string();
        let error = at(&taken, false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert!(error.error.contains(&taken), "{error:?}");
        // A documentation address (RFC 5737), which no machine has.
        let elsewhere = at("192.0.2.1:0", true).unwrap_err();
        assert_eq!(elsewhere.kind, ErrorKind::Failed);
    }

    #[test]
    fn other_machines_are_let_in_only_if_the_configuration_says_so() {
        for addr in ["0.0.0.0:0", "[::]:0"] {
            let error = at(addr, false).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{addr}");
            assert!(error.hint.unwrap().contains("allow_remote"), "{addr}");
        }
        assert!(at("0.0.0.0:0", true).is_ok());
    }
}
