//! Pages of lists: the token that leads to the next page, and the number of items on one.
//!
//! A token names the place behind the last item of a page, not a number of items. So what is added
//! or deleted meanwhile neither repeats an item nor skips one. Clients must not look inside: it
//! is base64url of `LIST:PLACE` behind the first bytes of its digest, so that a token that was cut, or
//! belongs to another list, is noticed.

use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, IntoResponseParts, ResponseParts};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::error::HttpError;

/// Most items on a page, and how many there are when nothing is said.
pub(super) const PAGE_ITEMS_MAX: usize = 100;
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 512;
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// A list that comes in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Sandboxes, newest first.
    SandboxesNewest,
    /// Sandboxes, oldest first.
    SandboxesOldest,
    /// Snapshots, newest first.
    Snapshots,
}

impl List {
    fn word(self) -> &'static str {
        match self {
            Self::SandboxesNewest => "sandboxes",
            Self::SandboxesOldest => "sandboxes-oldest",
            Self::Snapshots => "snapshots",
        }
    }

    /// The place that a token names.
    pub(super) fn place(self, token: Option<&str>) -> Result<Option<String>, HttpError> {
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            return Ok(None);
        };
        let wrong = || HttpError::bad_request("that is no token of this list");
        if token.len() > TOKEN_BYTES_MAX {
            return Err(wrong());
        }
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|_| wrong())?;
        let (check, text) = bytes.split_first_chunk().ok_or_else(wrong)?;
        let text = std::str::from_utf8(text).map_err(|_| wrong())?;
        match text.split_once(':') {
            Some((list, place)) if *check == digest(text) && list == self.word() => {
                Ok(Some(place.to_owned()))
            }
            _ => Err(wrong()),
        }
    }

    fn token(self, place: &str) -> String {
        let text = format!("{}:{place}", self.word());
        URL_SAFE_NO_PAD.encode([&digest(&text)[..], text.as_bytes()].concat())
    }

    /// Cuts what was found for one page and an item more into the page and the token of the next.
    pub(super) fn page<T>(
        self,
        mut found: Vec<T>,
        limit: usize,
        place: impl Fn(&T) -> &str,
    ) -> (Next, Vec<T>) {
        let more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| more);
        (Next(last.map(|item| self.token(place(item)))), found)
    }
}

/// What tells a token that was cut or made up. It need not keep anybody from making one.
fn digest(text: &str) -> [u8; 6] {
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|at| digest[at])
}

/// How many items to put on a page: what was asked for, but not more than there may be.
pub(super) fn limit(asked: Option<u64>) -> Result<usize, HttpError> {
    match asked {
        None => Ok(PAGE_ITEMS_MAX),
        Some(0) => Err(HttpError::bad_request("a page has at least 1 item")),
        Some(limit) => {
            Ok(usize::try_from(limit).map_or(PAGE_ITEMS_MAX, |limit| limit.min(PAGE_ITEMS_MAX)))
        }
    }
}

/// The header that leads to the next page; none on the last one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next(Option<String>);

impl IntoResponseParts for Next {
    type Error = HttpError;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, HttpError> {
        if let Some(token) = self.0 {
            let value = HeaderValue::try_from(token).map_err(|_| HttpError::internal())?;
            parts.headers_mut().insert(NEXT_TOKEN, value);
        }
        Ok(parts)
    }
}

impl IntoResponse for Next {
    fn into_response(self) -> axum::response::Response {
        (self, ()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_back_to_its_place() {
        for place in ["1700000000000000000-42", "ü:/?&", "x"] {
            let token = List::Snapshots.token(place);
            assert!(
                token
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            );
            let found = List::Snapshots.place(Some(&token)).unwrap();
            assert_eq!(found.as_deref(), Some(place));
        }
        assert_eq!(List::Snapshots.place(None).unwrap(), None);
        assert_eq!(List::Snapshots.place(Some("")).unwrap(), None);
    }

    #[test]
    fn what_is_no_token_of_the_list_is_refused() {
        let other = List::SandboxesNewest.token("1");
        let good = List::Snapshots.token("1700000000000000000-42");
        let long = "A".repeat(TOKEN_BYTES_MAX + 1);
        let plain = URL_SAFE_NO_PAD.encode("snapshots:1700000000000000000-42");
        let cut = (1..good.len()).map(|len| good[..len].to_owned());
        let wrong = ["%", "AA", "nonsense", "/w", &other, &long, &plain].map(str::to_owned);
        for token in cut.chain(wrong) {
            let error = List::Snapshots.place(Some(&token)).unwrap_err();
            assert_eq!(error.status.as_u16(), 400, "{token}");
        }
    }

    #[test]
    fn only_a_page_that_is_followed_by_another_has_a_token() {
        let items = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
        let (next, page) = List::Snapshots.page(items(3), 3, |item| item);
        assert_eq!((next, page.len()), (Next(None), 3));
        let (next, page) = List::Snapshots.page(items(4), 3, |item| item);
        assert_eq!(
            (next, page.len()),
            (Next(Some(List::Snapshots.token("2"))), 3)
        );
        let (next, page) = List::Snapshots.page(items(0), 3, |item| item);
        assert_eq!((next, page.len()), (Next(None), 0));
    }

    #[test]
    fn pages_are_never_larger_than_they_may_be() {
        assert_eq!(limit(None).unwrap(), 100);
        assert_eq!(limit(Some(7)).unwrap(), 7);
        assert_eq!(limit(Some(u64::MAX)).unwrap(), 100);
        assert!(limit(Some(0)).is_err());
    }
}
