//! Names as git shows them, and the line of a path.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::wire::WirePath;
use crate::wire::records::Changed;

/// A path as git shows it: as it is if it is printable ASCII without quotes and backslashes, else
/// in double quotes with those bytes escaped, octal where there is no letter for them.
pub(in crate::commands) fn quoted(path: &[u8]) -> String {
    let plain = |byte: &u8| matches!(byte, 0x20..0x7f) && !matches!(byte, b'"' | b'\\');
    if path.iter().all(plain) {
        return String::from_utf8_lossy(path).into_owned();
    }
    let mut out = String::from("\"");
    for byte in path {
        match byte {
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0b => out.push_str("\\v"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            byte if plain(byte) => out.push(char::from(*byte)),
            byte => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

/// A path with a letter for the side in front.
pub(super) fn prefixed(side: &str, path: &[u8]) -> String {
    quoted(&[side.as_bytes(), path].concat())
}

/// The letter of a change.
pub(in crate::commands) fn letter(change: &str) -> &'static str {
    match change {
        "added" => "A",
        "deleted" => "D",
        "modified" => "M",
        "type_changed" => "T",
        "renamed" => "R",
        _ => "m",
    }
}

/// The line of an entry: letter, paths.
pub(in crate::commands) fn status(one: &Changed) -> String {
    let path = quoted(&one.path.to_bytes());
    let letter = match one.change.as_str() {
        "renamed" if one.modified => "RM",
        "renamed" if one.metadata => "Rm",
        change => letter(change),
    };
    match &one.from {
        Some(from) => format!("{letter}\t{}\t{path}\n", quoted(&from.to_bytes())),
        None => format!("{letter}\t{path}\n"),
    }
}

/// A path as the daemon takes it: from the root, without what says nothing.
pub(in crate::commands) fn from_root(path: &OsString) -> WirePath {
    let parts = path.as_bytes().split(|&byte| byte == b'/');
    let parts: Vec<&[u8]> = parts
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    WirePath::from_bytes(&parts.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root_however_they_are_written() {
        for (given, meant) in [("/a//b/", "a/b"), ("./a", "a"), ("/", ""), (".", "")] {
            assert_eq!(from_root(&given.into()).to_bytes(), meant.as_bytes());
        }
    }

    #[test]
    fn names_are_quoted_as_git_quotes_them() {
        assert_eq!(quoted(b"a b/c'd"), "a b/c'd");
        assert_eq!(quoted("ü".as_bytes()), r#""\303\274""#);
        assert_eq!(quoted(b"a\"b\\c"), r#""a\"b\\c""#);
        let control = b"\x07\x08\t\n\x0b\x0c\r\x01\x7f\xff";
        assert_eq!(quoted(control), r#""\a\b\t\n\v\f\r\001\177\377""#);
        assert_eq!(prefixed("a/", b"\n"), r#""a/\n""#);
    }

    #[test]
    fn a_renamed_file_shows_both_paths_and_what_else_changed() {
        let one = |modified, metadata| Changed {
            path: WirePath::from_bytes(b"new\n"),
            from: Some(WirePath::from_bytes(b"old")),
            change: "renamed".into(),
            modified,
            metadata,
            ..Changed::default()
        };
        assert_eq!(status(&one(false, false)), "R\told\t\"new\\n\"\n");
        assert_eq!(status(&one(true, true)), "RM\told\t\"new\\n\"\n");
        assert_eq!(status(&one(false, true)), "Rm\told\t\"new\\n\"\n");
    }
}
