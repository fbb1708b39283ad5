//! Finding sandboxes, and ending them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Name, Params};
use super::super::paging::{self, List, Next};
use super::super::state::{Api, Shared};
use super::models::{ListedSandbox, SandboxDetail, floe_states};
use crate::wire::ListSandboxes;
use crate::wire::sandbox::SandboxState;

/// Which sandboxes to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only those with all of these: `k=v&k=v`, each key and value encoded once more.
    metadata: Option<String>,
    /// Only those in one of these states: `running`, `paused`, with commas between them.
    state: Option<String>,
    /// `desc` (newest first, as when nothing is said) or `asc`.
    order: Option<String>,
    /// Only those made at this time or later, RFC 3339.
    started_after: Option<String>,
    /// Only those made from this, as it was asked for.
    template: Option<String>,
    /// At most this many: 100 if nothing is said, and at the most.
    limit: Option<u64>,
    /// Where the page before ended, as its `x-next-token` says.
    next_token: Option<String>,
}

/// Lists the sandboxes that run, newest first; all on one page.
#[utoipa::path(
    get,
    path = "/sandboxes",
    tag = "sandboxes",
    params(("metadata" = Option<String>, Query, description = "Only those with all of these")),
    responses((status = 200, body = Vec<ListedSandbox>)),
)]
pub(super) async fn list(
    State(api): State<Shared>,
    Params(filter): Params<Filter>,
) -> Result<Json<Vec<ListedSandbox>>, HttpError> {
    let running = Filter {
        state: Some("running".to_owned()),
        metadata: filter.metadata,
        ..Filter::default()
    };
    let (_, mut request) = running.into_request()?;
    request.limit = None;
    let found = api.work(move |backend| backend.sandboxes(&request)).await?;
    Ok(Json(shown(&api, found)))
}

/// Lists sandboxes, newest first unless asked otherwise.
#[utoipa::path(
    get,
    path = "/v2/sandboxes",
    tag = "sandboxes",
    params(Filter),
    responses(
        (status = 200, body = Vec<ListedSandbox>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last one"))),
        (status = 400, body = ErrorBody, description = "No such state, order, time or token"),
    ),
)]
pub(super) async fn list_v2(
    State(api): State<Shared>,
    Params(filter): Params<Filter>,
) -> Result<(Next, Json<Vec<ListedSandbox>>), HttpError> {
    let limit = paging::limit(filter.limit)?;
    let (list, request) = filter.into_request()?;
    let found = api.work(move |backend| backend.sandboxes(&request)).await?;
    let (next, page) = list.page(found, limit, |sandbox| &sandbox.cursor);
    Ok((next, Json(shown(&api, page))))
}

fn shown(api: &Api, found: Vec<crate::wire::sandbox::Sandbox>) -> Vec<ListedSandbox> {
    let each = found.into_iter();
    each.map(|sandbox| ListedSandbox::new(api.host, sandbox))
        .collect()
}

impl Filter {
    fn into_request(self) -> Result<(List, ListSandboxes), HttpError> {
        let list = match self.order.as_deref() {
            None | Some("desc") => List::SandboxesNewest,
            Some("asc") => List::SandboxesOldest,
            Some(_) => return Err(HttpError::bad_request("the order is `asc` or `desc`")),
        };
        let request = ListSandboxes {
            states: states(self.state.as_deref())?,
            metadata: metadata(self.metadata.as_deref().unwrap_or(""))?,
            template: self.template,
            // A `+` that was not encoded arrives as a space.
            since: self.started_after.map(|time| time.replace(' ', "+")),
            oldest_first: list == List::SandboxesOldest,
            after: list.place(self.next_token.as_deref())?,
            // One more tells whether there is another page.
            limit: Some(paging::limit(self.limit)? + 1),
        };
        Ok((list, request))
    }
}

fn states(words: Option<&str>) -> Result<Vec<SandboxState>, HttpError> {
    let mut states = Vec::new();
    for word in words
        .unwrap_or("")
        .split(',')
        .filter(|word| !word.is_empty())
    {
        let these = floe_states(word)
            .ok_or_else(|| HttpError::bad_request("a state is `running` or `paused`"))?;
        states.extend(these);
    }
    Ok(states)
}

/// Reads metadata as clients write it: keys and values encoded, put together as a query, and that
/// encoded again. What is encoded less often is understood too, as long as it needs no encoding.
fn metadata(text: &str) -> Result<BTreeMap<String, String>, HttpError> {
    let mut found = BTreeMap::new();
    let text = decoded(text)?;
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            HttpError::bad_request("metadata is looked for as `key=value`, with `&` between them")
        })?;
        found.insert(decoded(key)?, decoded(value)?);
    }
    Ok(found)
}

fn decoded(text: &str) -> Result<String, HttpError> {
    let spaced = text.replace('+', " ");
    let text = percent_decode_str(&spaced).decode_utf8();
    let text = text.map_err(|_| HttpError::bad_request("what is looked for is no UTF-8"))?;
    Ok(text.into_owned())
}

/// Describes a sandbox.
#[utoipa::path(
    get,
    path = "/sandboxes/{sandbox_id}",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    responses(
        (status = 200, body = SandboxDetail),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn show(
    State(api): State<Shared>,
    Name(id): Name,
) -> Result<Json<SandboxDetail>, HttpError> {
    let (sandbox, token) = api
        .work(move |backend| Ok((backend.sandbox(&id)?, backend.access_token(&id)?)))
        .await?;
    Ok(Json(SandboxDetail::new(&api, sandbox, token)))
}

/// Ends a sandbox and removes it; its snapshots stay.
#[utoipa::path(
    delete,
    path = "/sandboxes/{sandbox_id}",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, body = ErrorBody, description = "It was gone already, or never was"),
    ),
)]
pub(super) async fn kill(
    State(api): State<Shared>,
    Name(id): Name,
) -> Result<StatusCode, HttpError> {
    api.work(move |backend| backend.kill(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(text: &str) -> String {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    }

    #[test]
    fn metadata_is_read_as_the_clients_write_it() {
        // What arrives behind `metadata=` once the query itself is decoded: keys and values were quoted, and
        // then quoted again as a form.
        let found = metadata("user=a%2526b%253Dc&na%2520me=x%252By").unwrap();
        assert_eq!(found["user"], "a&b=c");
        assert_eq!(found["na me"], "x+y");
        assert_eq!(metadata("k=v").unwrap()["k"], "v");
        assert!(metadata("").unwrap().is_empty());
        assert!(metadata("k").is_err());
        assert!(metadata("k=%25FF").is_err());
    }

    #[test]
    fn states_and_orders_are_checked() {
        assert!(states(None).unwrap().is_empty());
        assert!(
            states(Some("paused"))
                .unwrap()
                .contains(&SandboxState::Stopped)
        );
        assert_eq!(states(Some("running,paused")).unwrap().len(), 8);
        assert!(states(Some("gone")).is_err());
        let order = |order: &str| Filter {
            order: Some(order.to_owned()),
            ..Filter::default()
        };
        assert!(order("asc").into_request().unwrap().1.oldest_first);
        assert!(!order("desc").into_request().unwrap().1.oldest_first);
        assert!(order("up").into_request().is_err());
    }

    proptest! {
        #[test]
        fn any_metadata_survives_the_way_here(key in "\\PC{1,20}", value in "\\PC{0,20}") {
            let form = format!("{}={}", encoded(&encoded(&key)), encoded(&encoded(&value)));
            let found = metadata(&form).unwrap();
            prop_assert_eq!(found.get(&key), Some(&value));
        }

        #[test]
        fn no_filter_is_too_strange(text in "\\PC{0,60}") {
            if let Ok(found) = metadata(&text) {
                prop_assert!(found.len() <= text.len());
            }
        }
    }
}
