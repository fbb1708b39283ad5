//! Names of templates. docs/format.md, section 10.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use super::NAME_MAX;

/// The tag of a name without one.
const DEFAULT_TAG: &str = "default";

/// Why a text is no name of a template.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateNameError {
    /// It is empty.
    #[error("a template name cannot be empty")]
    Empty,
    /// It is longer than [`NAME_MAX`] bytes.
    #[error("a template name of {len} bytes is too long: at most {NAME_MAX} are allowed")]
    TooLong {
        /// How many bytes it has.
        len: usize,
    },
    /// A part of it is empty, or has a character that it may not have.
    #[error(
        "the template name {name:?} is not allowed: use lower-case letters, digits, '.', '_' and '-', \
         with '/' between parts that start with a letter or digit, and ':' before a tag"
    )]
    BadCharacter {
        /// The name as given.
        name: String,
    },
}

/// The name of a template: `NAME` or `NAME:TAG`. The tag `default` is that of a name without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct TemplateName(String);

impl TemplateName {
    /// Checks an alleged name.
    ///
    /// # Errors
    /// [`TemplateNameError`].
    pub fn parse(text: &str) -> Result<Self, TemplateNameError> {
        if text.is_empty() {
            return Err(TemplateNameError::Empty);
        }
        if text.len() > NAME_MAX {
            return Err(TemplateNameError::TooLong { len: text.len() });
        }
        let (name, tag) = match text.split_once(':') {
            None => (text, None),
            Some((name, tag)) => (name, Some(tag)),
        };
        if !name.split('/').all(is_part) || !tag.is_none_or(is_tag) {
            return Err(TemplateNameError::BadCharacter {
                name: text.to_owned(),
            });
        }
        let kept = match tag {
            Some(DEFAULT_TAG) => name,
            _ => text,
        };
        Ok(Self(kept.to_owned()))
    }

    /// The name as text, without the tag `default`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name without its tag.
    #[must_use]
    pub fn base(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(name, _)| name)
    }

    /// Its tag, also if that is not written.
    #[must_use]
    pub fn tag(&self) -> &str {
        self.0.split_once(':').map_or(DEFAULT_TAG, |(_, tag)| tag)
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_part(part: &str) -> bool {
    let mut bytes = part.bytes();
    let small = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.next().is_some_and(small)
        && bytes.all(|byte| small(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

fn is_tag(tag: &str) -> bool {
    let mut bytes = tag.bytes();
    let first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    bytes.next().is_some_and(first) && bytes.all(|byte| first(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parts_and_a_tag_are_taken_and_the_default_tag_is_dropped() {
        for good in [
            "a",
            "python-3.12",
            "team/a_b/c",
            "base:v1.2",
            "0",
            "a/b:Main",
        ] {
            assert_eq!(TemplateName::parse(good).unwrap().as_str(), good);
        }
        let plain = TemplateName::parse("team/base:default").unwrap();
        assert_eq!(plain.as_str(), "team/base");
        assert_eq!((plain.base(), plain.tag()), ("team/base", "default"));
        let tagged = TemplateName::parse("team/base:v1").unwrap();
        assert_eq!((tagged.base(), tagged.tag()), ("team/base", "v1"));
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!(TemplateName::parse(""), Err(TemplateNameError::Empty));
        let long = "a".repeat(NAME_MAX + 1);
        assert_eq!(
            TemplateName::parse(&long),
            Err(TemplateNameError::TooLong { len: 129 })
        );
        assert!(TemplateName::parse(&long[1..]).is_ok());
        for bad in [
            "A", "a//b", "/a", "a/", "a:", ":a", "a:b:c", "-a", ".a", "a/.b", "a b", "é", "a\n",
            "a:-b", "a:b/c",
        ] {
            let refused = TemplateName::parse(bad).unwrap_err();
            let name = bad.to_owned();
            assert_eq!(refused, TemplateNameError::BadCharacter { name });
        }
    }
}
