//! What a request says of the network, and whether it can be had.
//!
//! A sandbox shares the host's network or has none. What lies between the two (rules for single
//! hosts, proxies) cannot be enforced, and so is refused rather than passed over.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Input, Name};
use super::super::state::Shared;

/// Names of everything, where a request denies it.
const EVERYTHING: [&str; 3] = ["0.0.0.0/0", "::/0", "*"];

/// Rules for what leaves a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    /// Hosts that may be reached. Not possible together with a denial.
    #[serde(default)]
    allow_out: Option<Vec<String>>,
    /// Addresses that may not be reached: `0.0.0.0/0` for all, which is the one that is possible.
    #[serde(default)]
    deny_out: Option<Vec<String>>,
    /// Not possible: ports are not guarded.
    #[serde(default)]
    allow_public_traffic: Option<bool>,
    /// Not possible.
    #[serde(default)]
    #[schema(value_type = Object)]
    egress_proxy: Option<Value>,
    /// Not possible.
    #[serde(default)]
    #[schema(value_type = Object)]
    rules: Option<Value>,
    /// Not possible.
    #[serde(default)]
    mask_request_host: Option<String>,
    /// Not possible.
    #[serde(default)]
    https_ports: Option<Vec<u16>>,
    /// Whether anything may be reached.
    #[serde(
        default,
        rename = "allow_internet_access",
        alias = "allowInternetAccess"
    )]
    allow_internet_access: Option<bool>,
}

impl Network {
    /// Whether a sandbox with these rules has a network, where nothing is said otherwise.
    pub(super) fn wanted(&self) -> Result<bool, HttpError> {
        let not_possible = |what: &str| {
            Err(HttpError::bad_request(format!(
                "{what} cannot be enforced: a sandbox has the host's network, or none"
            )))
        };
        let is_set = |value: &Option<Value>| match value {
            None | Some(Value::Null) => false,
            Some(Value::Object(members)) => !members.is_empty(),
            Some(_) => true,
        };
        if self.allow_public_traffic == Some(false) {
            return not_possible("`allowPublicTraffic: false`");
        }
        if is_set(&self.egress_proxy) {
            return not_possible("`egressProxy`");
        }
        if is_set(&self.rules) {
            return not_possible("`rules`");
        }
        if self.mask_request_host.is_some() {
            return not_possible("`maskRequestHost`");
        }
        if self
            .https_ports
            .as_ref()
            .is_some_and(|ports| !ports.is_empty())
        {
            return not_possible("`httpsPorts`");
        }
        let denied = self.deny_out.as_deref().unwrap_or_default();
        let allowed = self.allow_out.as_deref().unwrap_or_default();
        let everything = denied.iter().any(|one| EVERYTHING.contains(&one.as_str()));
        let nothing_wanted = everything || self.allow_internet_access == Some(false);
        if nothing_wanted && !allowed.is_empty() {
            return not_possible("`allowOut` with everything else denied");
        }
        if !everything && !denied.is_empty() {
            return not_possible("`denyOut` of single addresses");
        }
        Ok(!nothing_wanted)
    }
}

/// Says what a sandbox may reach. A sandbox keeps the network it was made with: what it has already
/// is accepted.
#[utoipa::path(
    put,
    path = "/sandboxes/{sandbox_id}/network",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Network,
    responses(
        (status = 204, description = "It is so"),
        (status = 400, body = ErrorBody, description = "Rules that cannot be enforced"),
        (status = 403, body = ErrorBody, description = "Not with the network it was made with"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn put_network(
    State(api): State<Shared>,
    Name(id): Name,
    Input(network): Input<Network>,
) -> Result<StatusCode, HttpError> {
    let wanted = network.wanted()?;
    let sandbox = api.work(move |backend| backend.sandbox(&id)).await?;
    match (wanted, sandbox.network) {
        (true, false) => Err(HttpError::forbidden(
            "the sandbox has no network: the configuration, or the request that made it, forbids it",
        )),
        (false, true) => Err(HttpError::forbidden(
            "a sandbox keeps the network it was made with; make one with `allow_internet_access` false",
        )),
        (true, true) | (false, false) => Ok(StatusCode::NO_CONTENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<bool, u16> {
        let network: Network = serde_json::from_str(text).unwrap();
        network.wanted().map_err(|error| error.status.as_u16())
    }

    #[test]
    fn all_or_nothing_is_possible() {
        for (text, expected) in [
            ("{}", true),
            (r#"{"allow_internet_access": true}"#, true),
            (r#"{"allow_internet_access": false}"#, false),
            (r#"{"allowInternetAccess": false}"#, false),
            (r#"{"denyOut": ["0.0.0.0/0"]}"#, false),
            (r#"{"allowOut": ["example.com"]}"#, true),
            (
                r#"{"allowOut": [], "denyOut": [], "rules": {}, "egressProxy": null}"#,
                true,
            ),
            (r#"{"allowPublicTraffic": true}"#, true),
        ] {
            assert_eq!(wanted(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        for text in [
            r#"{"denyOut": ["10.0.0.0/8"]}"#,
            r#"{"allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"]}"#,
            r#"{"allowOut": ["example.com"], "allow_internet_access": false}"#,
            r#"{"allowPublicTraffic": false}"#,
            r#"{"egressProxy": {"address": "a:1"}}"#,
            r#"{"rules": {"a": []}}"#,
            r#"{"maskRequestHost": "a"}"#,
            r#"{"httpsPorts": [443]}"#,
        ] {
            assert_eq!(wanted(text), Err(400), "{text}");
        }
    }
}
