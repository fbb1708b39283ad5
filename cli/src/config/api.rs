//! How the HTTP API is served.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;

use super::values;

/// The table `[api]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Address and port to listen on; port 0 takes a free one.
    pub addr: SocketAddr,
    /// Whether that may be an address that other machines can reach.
    pub allow_remote: bool,
    /// The domain under which `{port}-{sandbox}.{domain}` leads here, with the port if it is not that
    /// of the scheme. Absent: `localhost` with the port that is listened on, if that is a loopback
    /// address; otherwise there is none.
    #[serde(deserialize_with = "values::domain")]
    pub domain: Option<String>,
    /// Longest body of a request in bytes, other than an upload's.
    #[serde(deserialize_with = "values::bytes")]
    pub request_bytes_max: usize,
    /// How long a request may take that is no stream, in seconds.
    #[serde(rename = "request_time_max", deserialize_with = "values::seconds")]
    pub request_time_max_s: u64,
    /// Most requests that work on the store at once.
    #[serde(deserialize_with = "values::at_least_one")]
    pub requests_max: usize,
    /// Most connections at once.
    #[serde(deserialize_with = "values::at_least_one")]
    pub connections_max: usize,
    /// How long an upload or download may stand still before it is given up, in seconds.
    #[serde(rename = "idle_time_max", deserialize_with = "values::seconds")]
    pub idle_time_max_s: u64,
    /// How long what is at work may take to finish once the daemon is to end, in seconds.
    #[serde(rename = "end_time_max", deserialize_with = "values::seconds")]
    pub end_time_max_s: u64,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 8090)),
            allow_remote: false,
            domain: None,
            request_bytes_max: 4 << 20,
            request_time_max_s: 120,
            requests_max: 256,
            connections_max: 1024,
            idle_time_max_s: 300,
            end_time_max_s: 10,
        }
    }
}
