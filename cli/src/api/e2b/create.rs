//! Making a sandbox, in both generations of the contract.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::super::error::{ErrorBody, HttpError};
use super::super::input::Input;
use super::super::state::{Api, Shared};
use super::models::Sandbox;
use super::network::Network;
use super::{DEFAULT_TEMPLATE, timeout};
use crate::wire::CreateSandbox;
use crate::wire::sandbox::{Limits, OnTimeout};

/// Most entries of metadata, and most variables.
const ENTRIES_MAX: usize = 256;
/// Longest key or value of metadata in bytes.
const METADATA_TEXT_MAX: usize = 4096;
/// Longest idempotency key in bytes.
const IDEMPOTENCY_KEY_MAX: usize = 255;

/// What a sandbox is to be like.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    /// What to start from: a template's name, or a snapshot's id or name.
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    /// Its time in seconds; 300 if nothing is said.
    timeout: Option<i64>,
    /// Pause it when its time is over, instead of removing it.
    #[serde(default)]
    auto_pause: Option<bool>,
    /// Taken, and without effect: what is paused keeps its processes.
    #[serde(default, rename = "autoPauseMemory")]
    _auto_pause_memory: Option<bool>,
    /// Whether a request to it resumes it.
    #[serde(default)]
    auto_resume: Option<AutoResume>,
    /// What its maker says of it.
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    /// Environment of its processes.
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
    /// Whether it may have the host's network, if the configuration allows that.
    #[serde(
        default,
        rename = "allow_internet_access",
        alias = "allowInternetAccess"
    )]
    allow_internet_access: Option<bool>,
    /// Rules for the network.
    #[serde(default)]
    network: Option<Network>,
    /// Guard its files and processes with a token of its own. So it is unless `false` is said.
    #[serde(default)]
    secure: Option<bool>,
    /// Taken, and without effect: the client starts the gateway itself.
    #[serde(default, rename = "mcp")]
    #[schema(value_type = Object)]
    _mcp: Option<Value>,
    /// Not possible.
    #[serde(default)]
    #[schema(value_type = Object)]
    iam: Option<Value>,
    /// Not possible.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    volume_mounts: Option<Vec<Value>>,
}

/// Whether a request to a paused sandbox resumes it.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct AutoResume {
    /// It does.
    #[serde(default)]
    enabled: Option<bool>,
}

/// Makes a sandbox and starts it.
#[utoipa::path(
    post,
    path = "/sandboxes",
    tag = "sandboxes",
    params(("Idempotency-Key" = Option<String>, Header, description = "A second request with this key is answered with the first one's sandbox")),
    request_body = NewSandbox,
    responses(
        (status = 201, body = Sandbox, description = "It runs"),
        (status = 400, body = ErrorBody, description = "The request makes no sense"),
        (status = 404, body = ErrorBody, description = "No such template or snapshot"),
        (status = 503, body = ErrorBody, description = "Not at this moment"),
    ),
)]
pub(super) async fn create(
    State(api): State<Shared>,
    headers: HeaderMap,
    Input(new): Input<NewSandbox>,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    make(&api, &headers, new).await
}

/// Makes a sandbox and starts it.
#[utoipa::path(
    post,
    path = "/v2/sandboxes",
    tag = "sandboxes",
    params(("Idempotency-Key" = Option<String>, Header, description = "A second request with this key is answered with the first one's sandbox")),
    request_body = NewSandbox,
    responses(
        (status = 201, body = Sandbox, description = "It runs"),
        (status = 400, body = ErrorBody, description = "The request makes no sense"),
        (status = 404, body = ErrorBody, description = "No such template or snapshot"),
        (status = 503, body = ErrorBody, description = "Not at this moment"),
    ),
)]
pub(super) async fn create_v2(
    State(api): State<Shared>,
    headers: HeaderMap,
    Input(new): Input<NewSandbox>,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    make(&api, &headers, new).await
}

async fn make(
    api: &Api,
    headers: &HeaderMap,
    new: NewSandbox,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    let usual_s = api.host.timeout_s;
    let request = CreateSandbox {
        idempotency_key: idempotency_key(headers)?,
        ..new.into_request(usual_s)?
    };
    let (sandbox, token) = api
        .work(move |backend| {
            let made = backend.create(&request)?;
            let token = backend.access_token(&made.sandbox.id)?;
            Ok((made.sandbox, token))
        })
        .await?;
    Ok((StatusCode::CREATED, Json(Sandbox::new(api, sandbox, token))))
}

impl NewSandbox {
    /// The request for it. `usual_s`: the time of one that names none, in seconds.
    fn into_request(self, usual_s: u64) -> Result<CreateSandbox, HttpError> {
        if self.iam.is_some_and(|iam| !iam.is_null()) {
            return Err(HttpError::bad_request("`iam` is not supported"));
        }
        if self
            .volume_mounts
            .is_some_and(|volumes| !volumes.is_empty())
        {
            return Err(HttpError::bad_request("`volumeMounts` are not supported"));
        }
        let metadata = self.metadata.unwrap_or_default();
        check_metadata(&metadata)?;
        let env = self.env_vars.unwrap_or_default();
        check_env(&env)?;
        let rules = self.network.unwrap_or_default();
        let template = self
            .template_id
            .unwrap_or_else(|| DEFAULT_TEMPLATE.to_owned());
        Ok(CreateSandbox {
            template: Some(template),
            metadata,
            env,
            timeout_s: Some(timeout(self.timeout, usual_s)?.as_secs()),
            on_timeout: match self.auto_pause {
                Some(true) => OnTimeout::Pause,
                _ => OnTimeout::Kill,
            },
            auto_resume: self.auto_resume.unwrap_or_default().enabled == Some(true),
            network: rules.wanted()? && self.allow_internet_access != Some(false),
            secure: self.secure != Some(false),
            limits: Limits::default(),
            idempotency_key: None,
            session: None,
            vm: None,
        })
    }
}

/// Whether metadata is not too much.
pub(in super::super) fn check_metadata(
    metadata: &BTreeMap<String, String>,
) -> Result<(), HttpError> {
    if metadata.len() > ENTRIES_MAX {
        let what = format!("there is more metadata than {ENTRIES_MAX} entries");
        return Err(HttpError::bad_request(what));
    }
    let long = |text: &String| text.len() > METADATA_TEXT_MAX;
    if metadata.iter().any(|(key, value)| long(key) || long(value)) {
        let what = format!("a key or value of metadata has more than {METADATA_TEXT_MAX} bytes");
        return Err(HttpError::bad_request(what));
    }
    Ok(())
}

/// Whether variables can be an environment.
pub(in super::super) fn check_env(env: &BTreeMap<String, String>) -> Result<(), HttpError> {
    if env.len() > ENTRIES_MAX {
        let what = format!("there are more variables than {ENTRIES_MAX}");
        return Err(HttpError::bad_request(what));
    }
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let what = format!("'{}' cannot be a variable", name.escape_default());
            return Err(HttpError::bad_request(what));
        }
    }
    Ok(())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, HttpError> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let fits = (1..=IDEMPOTENCY_KEY_MAX).contains(&key.len()) && key.as_bytes().iter().all(allowed);
    let key = key.to_str().ok().filter(|_| fits).ok_or_else(|| {
        HttpError::bad_request(format!(
            "an idempotency key has 1 to {IDEMPOTENCY_KEY_MAX} letters, digits, `-` and `_`"
        ))
    })?;
    Ok(Some(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::TIMEOUT_S;
    use super::*;

    fn request(text: &str) -> Result<CreateSandbox, HttpError> {
        serde_json::from_str::<NewSandbox>(text)
            .unwrap()
            .into_request(TIMEOUT_S)
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let made = request("{}").unwrap();
        assert_eq!(made.template.as_deref(), Some("base"));
        assert_eq!(made.timeout_s, Some(300));
        assert_eq!(made.on_timeout, OnTimeout::Kill);
        assert!(made.secure && made.network && !made.auto_resume);
    }

    #[test]
    fn what_clients_say_arrives() {
        let made = request(
            r#"{"templateID": "team/name:tag", "timeout": 7, "autoPause": true, "secure": false,
                "autoResume": {"enabled": true}, "metadata": {"k": "v"}, "envVars": {"A": "b"},
                "allow_internet_access": false, "mcp": null, "iam": null, "volumeMounts": [],
                "future": 1}"#,
        )
        .unwrap();
        assert_eq!(made.template.as_deref(), Some("team/name:tag"));
        assert_eq!(
            (made.timeout_s, made.on_timeout),
            (Some(7), OnTimeout::Pause)
        );
        assert!(made.auto_resume && !made.network && !made.secure);
        assert_eq!(
            (&made.metadata["k"], &made.env["A"]),
            (&"v".to_owned(), &"b".to_owned())
        );
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for text in [
            r#"{"iam": {"tokens": {}}}"#,
            r#"{"volumeMounts": [{"name": "a", "path": "/a"}]}"#,
            r#"{"timeout": -1}"#,
            r#"{"envVars": {"": "x"}}"#,
            r#"{"envVars": {"A=B": "x"}}"#,
            r#"{"envVars": {"A": "x\u0000"}}"#,
            r#"{"network": {"denyOut": ["10.0.0.0/8"]}}"#,
        ] {
            assert_eq!(request(text).unwrap_err().status.as_u16(), 400, "{text}");
        }
        let many: Vec<_> = (0..=ENTRIES_MAX)
            .map(|n| format!("\"{n}\": \"\""))
            .collect();
        assert!(request(&format!(r#"{{"metadata": {{{}}}}}"#, many.join(","))).is_err());
        let long = "x".repeat(METADATA_TEXT_MAX + 1);
        assert!(request(&format!(r#"{{"metadata": {{"k": "{long}"}}}}"#)).is_err());
    }

    #[test]
    fn idempotency_keys_are_checked() {
        let key = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", text.parse().unwrap());
            idempotency_key(&headers)
        };
        assert_eq!(key("a-1_B").unwrap().as_deref(), Some("a-1_B"));
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
        for text in ["", "a b", "a/b", &"x".repeat(256)] {
            assert!(key(text).is_err(), "{text}");
        }
    }
}
