//! Where a request goes: to the REST API, to a sandbox's files and processes, or to a port in one.
//!
//! A sandbox is named by headers (`E2b-Sandbox-Id` and `E2b-Sandbox-Port`), or by the host
//! `{port}-{sandbox}.{domain}`. Headers come first. Every other host leads to the REST API.

use axum::http::{HeaderMap, Uri, header};

use super::error::HttpError;

/// The port under which clients expect a sandbox's files and processes; nothing in the sandbox
/// listens on it.
pub(super) const ENVD_PORT: u16 = 49983;
/// Longest id of a sandbox in bytes.
const ID_BYTES_MAX: usize = 63;

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The REST API.
    Rest,
    /// A port of a sandbox.
    Port {
        /// The sandbox.
        sandbox: String,
        /// The port.
        port: u16,
    },
}

/// Where a request goes, by its headers and its address.
pub(super) fn place(
    uri: &Uri,
    headers: &HeaderMap,
    domains: &[String],
) -> Result<Place, HttpError> {
    if let Some(sandbox) = headers.get("e2b-sandbox-id") {
        let sandbox = sandbox.to_str().ok().and_then(id);
        let sandbox =
            sandbox.ok_or_else(|| HttpError::bad_request("that is no id of a sandbox"))?;
        let port = match headers.get("e2b-sandbox-port") {
            None => ENVD_PORT,
            Some(text) => text
                .to_str()
                .ok()
                .and_then(port)
                .ok_or_else(|| HttpError::bad_request("that is no port of a sandbox"))?,
        };
        // Packages before 2.50 send these headers with some calls of the REST API, too.
        if port == ENVD_PORT && headers.contains_key("x-api-key") && is_of_rest(uri.path()) {
            return Ok(Place::Rest);
        }
        return Ok(Place::Port { sandbox, port });
    }
    let host = match headers.get(header::HOST) {
        Some(host) => host.to_str().unwrap_or(""),
        None => uri.authority().map_or("", |authority| authority.as_str()),
    };
    Ok(by_host(host, domains))
}

/// Whether a path is one of the REST API, of which a sandbox's own part has none.
fn is_of_rest(path: &str) -> bool {
    let first = path.split('/').find(|part| !part.is_empty());
    matches!(first, Some("sandboxes" | "v2" | "snapshots" | "templates"))
}

fn by_host(host: &str, domains: &[String]) -> Place {
    let host = without_port(host).to_ascii_lowercase();
    for domain in domains {
        let domain = without_port(domain).to_ascii_lowercase();
        let label = host
            .strip_suffix(&domain)
            .and_then(|rest| rest.strip_suffix('.'));
        // Whatever else stands below the domain is the API itself, such as `api.{domain}`.
        if let Some((first, rest)) = label.and_then(|label| label.split_once('-'))
            && let (Some(port), Some(sandbox)) = (port(first), id(rest))
        {
            return Place::Port { sandbox, port };
        }
    }
    Place::Rest
}

/// A host without the port behind it.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// A port other than 0, with no sign and no leading zeros: one port has one name.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    plain.then(|| text.parse().ok()).flatten()
}

/// An id of a sandbox, as far as its looks tell.
fn id(text: &str) -> Option<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let fits = !text.is_empty() && text.len() <= ID_BYTES_MAX && text.bytes().all(allowed);
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn domains() -> Vec<String> {
        vec!["floe.example:8420".to_owned(), "localhost".to_owned()]
    }

    fn of(headers: &[(&'static str, &str)]) -> Result<Place, HttpError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        place(&Uri::from_static("/"), &map, &domains())
    }

    fn port(sandbox: &str, port: u16) -> Place {
        let sandbox = sandbox.to_owned();
        Place::Port { sandbox, port }
    }

    #[test]
    fn headers_name_a_sandbox_whatever_the_host_is() {
        let headers = [("host", "3000-other.localhost"), ("e2b-sandbox-id", "abc")];
        assert_eq!(of(&headers).unwrap(), port("abc", ENVD_PORT));
        let headers = [("e2b-sandbox-id", "abc"), ("e2b-sandbox-port", "8080")];
        assert_eq!(of(&headers).unwrap(), port("abc", 8080));
    }

    #[test]
    fn calls_of_the_rest_api_are_that_whatever_sandbox_they_name() {
        let mut map = HeaderMap::new();
        map.insert("e2b-sandbox-id", "abc".parse().unwrap());
        map.insert("e2b-sandbox-port", "49983".parse().unwrap());
        map.insert("x-api-key", "k".parse().unwrap());
        let connect = Uri::from_static("/sandboxes/abc/connect");
        let at = |uri: &Uri, map: &HeaderMap| place(uri, map, &domains()).unwrap();
        assert_eq!(at(&connect, &map), Place::Rest);
        assert_eq!(
            at(&Uri::from_static("/files"), &map),
            port("abc", ENVD_PORT)
        );
        map.insert("e2b-sandbox-port", "8080".parse().unwrap());
        assert_eq!(at(&connect, &map), port("abc", 8080));
        map.remove("x-api-key");
        map.insert("e2b-sandbox-port", "49983".parse().unwrap());
        assert_eq!(at(&connect, &map), port("abc", ENVD_PORT));
    }

    #[test]
    fn nonsense_in_headers_is_an_error_and_does_not_lead_to_the_api() {
        for (id, port) in [
            ("a/b", "1"),
            ("", "1"),
            ("a", "0"),
            ("a", "65536"),
            ("a", "+1"),
            ("a", ""),
        ] {
            let headers = [("e2b-sandbox-id", id), ("e2b-sandbox-port", port)];
            assert_eq!(
                of(&headers).unwrap_err().status.as_u16(),
                400,
                "{id} {port}"
            );
        }
    }

    #[test]
    fn hosts_below_a_domain_name_a_sandbox() {
        for (host, expected) in [
            ("3000-abc.localhost:8420", port("abc", 3000)),
            ("3000-abc.localhost", port("abc", 3000)),
            ("49983-ABC.Floe.Example", port("abc", 49983)),
            ("80-a-b.floe.example", port("a-b", 80)),
            ("localhost:8420", Place::Rest),
            ("api.floe.example", Place::Rest),
            ("127.0.0.1:8420", Place::Rest),
            ("[::1]:8420", Place::Rest),
            ("3000-abc.evil.example", Place::Rest),
            ("3000-abc.notfloe.example", Place::Rest),
            ("x.3000-abc.floe.example", Place::Rest),
            ("03000-abc.localhost", Place::Rest),
            ("99999-abc.localhost", Place::Rest),
            ("3000-.localhost", Place::Rest),
        ] {
            assert_eq!(of(&[("host", host)]).unwrap(), expected, "{host}");
        }
    }

    proptest! {
        #[test]
        fn no_host_is_too_strange(host in "\\PC{0,80}") {
            by_host(&host, &domains());
        }

        #[test]
        fn every_port_and_id_is_found_in_its_host(number in 1u16.., id in "[a-z0-9]{1,30}") {
            let host = format!("{number}-{id}.localhost:1");
            prop_assert_eq!(by_host(&host, &domains()), port(&id, number));
        }
    }
}
