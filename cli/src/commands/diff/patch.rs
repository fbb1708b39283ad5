//! A patch with git's extended headers, file by file as they come.

use super::names::prefixed;
use super::{lines, names};
use crate::client::Client;
use crate::commands::Context;
use crate::error::ApiError;
use crate::wire::records::{Changed, FileLines, Version};

/// Prints the patch of all entries.
///
/// # Errors
/// When a file cannot be read, or the output cannot be written.
pub(super) fn print(
    context: &Context,
    client: &mut Client,
    entries: &[Changed],
) -> Result<(), ApiError> {
    let (mut left_out, mut gone) = (0_u64, 0_u64);
    for one in entries {
        for one in steps(one) {
            match header(&one) {
                Header::None => {}
                Header::Special => left_out += 1,
                Header::Text(mut text) => match lines(client, &one, true)? {
                    Some(FileLines::Gone) => gone += 1,
                    hunks => {
                        text.extend(body(&one, hunks));
                        context.output.raw(&text)?;
                    }
                },
            }
        }
    }
    if left_out > 0 {
        context.output.note(&format!(
            "a patch cannot hold devices, FIFOs and sockets: {left_out} left out"
        ));
    }
    if gone > 0 {
        let what = format!("files that were removed meanwhile are left out: {gone}");
        context.output.note(&what);
    }
    Ok(())
}

/// A file of another kind goes, and then the new one comes. So does a symbolic link, which patch(1)
/// takes for a file where its mode is not named.
fn steps(one: &Changed) -> Vec<Changed> {
    let link = |side: &Option<Version>| side.as_ref().is_some_and(|side| side.kind == "symlink");
    let other_link = one.is("modified") && link(&one.old) && link(&one.new);
    if !(one.is("type_changed") || other_link) {
        return vec![one.clone()];
    }
    let part = |change: &str, old: Option<Version>, new: Option<Version>| Changed {
        change: change.to_owned(),
        path: one.path.clone(),
        old,
        new,
        ..Changed::default()
    };
    vec![
        part("deleted", one.old.clone(), None),
        part("added", None, one.new.clone()),
    ]
}

enum Header {
    /// Nothing that a patch says: a directory, or attributes other than the mode.
    None,
    /// Nothing that a patch can say.
    Special,
    Text(Vec<u8>),
}

fn header(one: &Changed) -> Header {
    let path = one.path.to_bytes();
    let from = one
        .from
        .as_ref()
        .map_or(path.clone(), |from| from.to_bytes());
    let mut sides = [&one.old, &one.new].into_iter().flatten();
    if !sides.clone().all(Version::has_lines) {
        let directory = sides.all(|side| side.kind == "directory");
        return if directory {
            Header::None
        } else {
            Header::Special
        };
    }
    let mut text = format!(
        "diff --git {} {}\n",
        one_word(prefixed("a/", &from)),
        one_word(prefixed("b/", &path))
    );
    let first = text.len();
    match (&one.old, &one.new) {
        (None, Some(new)) => text.push_str(&format!("new file mode {}\n", mode(new))),
        (Some(old), None) => text.push_str(&format!("deleted file mode {}\n", mode(old))),
        (Some(old), Some(new)) if mode(old) != mode(new) => {
            text.push_str(&format!("old mode {}\nnew mode {}\n", mode(old), mode(new)));
        }
        _ => {}
    }
    if one.from.is_some() {
        text.push_str(&format!(
            "rename from {}\nrename to {}\n",
            names::quoted(&from),
            names::quoted(&path)
        ));
    }
    if text.len() == first && !one.modified() {
        return Header::None;
    }
    Header::Text(text.into_bytes())
}

/// Quotes a name with a blank in it as well, without which patch(1) does not find its end.
fn one_word(name: String) -> String {
    match name.contains(' ') && !name.starts_with('"') {
        true => format!("\"{name}\""),
        false => name,
    }
}

/// The mode as git writes it; a symbolic link has no permissions.
fn mode(version: &Version) -> String {
    match version.kind.as_str() {
        "symlink" => "120000".to_owned(),
        _ => format!("100{:03o}", version.mode & 0o777),
    }
}

/// What follows the header.
fn body(one: &Changed, found: Option<FileLines>) -> Vec<u8> {
    let path = one.path.to_bytes();
    let from = one
        .from
        .as_ref()
        .map_or(path.clone(), |from| from.to_bytes());
    let named = |there: bool, side: &str, path: &[u8]| match there {
        true => prefixed(side, path),
        false => "/dev/null".to_owned(),
    };
    let old = named(one.old.is_some(), "a/", &from);
    let new = named(one.new.is_some(), "b/", &path);
    match found {
        None | Some(FileLines::Gone) => Vec::new(),
        Some(FileLines::Binary) => format!("Binary files {old} and {new} differ\n").into_bytes(),
        Some(FileLines::TooLarge) => {
            format!("Files {old} and {new} differ and are too large to show\n").into_bytes()
        }
        Some(FileLines::Text { hunks, .. }) => {
            let hunks = hunks.map(|hunks| hunks.to_bytes()).unwrap_or_default();
            if hunks.is_empty() {
                return hunks;
            }
            // Or the end of a name with a blank in it could not be told from a time.
            let tab = |name: &str| match name.contains(' ') {
                true => "\t",
                false => "",
            };
            let (old_tab, new_tab) = (tab(&old), tab(&new));
            let mut text = format!("--- {old}{old_tab}\n+++ {new}{new_tab}\n").into_bytes();
            text.extend(hunks);
            text
        }
    }
}
