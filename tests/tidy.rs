//! Rules of the code that neither the compiler nor clippy checks. Each has a heading in
//! CONTRIBUTING.md; a failure names every place that breaks it.
//!
//! The checks read the working tree with `std` alone and need neither root nor FUSE. Where a rule
//! is about code, comments and string literals are blanked first ([`code_of`]), so that this file
//! may name what it forbids.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file in lines.
const MAX_LINES: usize = 600;

/// Where `unsafe` may stand, and nowhere else. A file is listed once it exists and needs it.
const UNSAFE_FILES: [&str; 12] = [
    "fs/src/sys.rs",
    "vmm/guest/src/agent/sys.rs",
    "vmm/payload/io.rs",
    "vmm/payload/main.rs",
    "vmm/payload/mem.rs",
    "vmm/payload/start.rs",
    "vmm/src/confine/jail.rs",
    "vmm/src/machine/overlay.rs",
    "vmm/src/machine/vcpu/kick.rs",
    "vmm/src/machine/vcpu/state.rs",
    "vmm/src/machine/vm.rs",
    "vmm/src/snapshot/image/lease.rs",
];

/// Words that must not be part of a package's code or manifest: what it may not know of.
const STRANGERS: [(&str, &[&str]); 2] = [
    (
        "fs",
        &["kvm", "http", "axum", "hyper::", "clap", "indicatif"],
    ),
    (
        "vmm",
        &[
            "rusqlite",
            "sqlite",
            "http",
            "axum",
            "hyper",
            "clap",
            "indicatif",
        ],
    ),
];

/// Calls whose result nobody may throw away.
const IO_CALLS: [&str; 22] = [
    "fs::",
    "File::",
    "rustix::",
    "libc::",
    "nix::",
    ".write",
    ".flush(",
    ".sync",
    ".read",
    ".seek",
    ".set_len(",
    ".set_permissions(",
    ".send(",
    ".recv(",
    ".kill(",
    ".wait(",
    ".unmount(",
    ".execute",
    ".commit(",
    ".rename(",
    ".remove",
    ".join(",
];

struct Source {
    path: String,
    text: String,
    code: String,
}

#[test]
fn no_source_file_is_too_long() {
    report(rust_sources().iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > MAX_LINES).then(|| format!("{}: {lines} lines (limit {MAX_LINES})", source.path))
    }));
}

#[test]
fn every_source_file_begins_with_module_docs() {
    report(
        rust_sources()
            .iter()
            .filter(|source| !source.text.starts_with("//!"))
            .map(|source| format!("{}: the first line is no `//!` comment", source.path)),
    );
}

#[test]
fn nothing_is_left_to_do_or_ignored() {
    let forbidden = [
        "todo!(",
        "unimplemented!(",
        "dbg!(",
        "#[ignore",
        "#![ignore",
    ];
    report(each_line(&rust_sources(), |_, line| {
        forbidden
            .iter()
            .find(|word| line.contains(**word))
            .map(|word| format!("`{word}`"))
    }));
}

#[test]
fn unsafe_stands_only_where_it_may_and_says_why_it_is_sound() {
    let sources = rust_sources();
    let mut wrong = each_line(&sources, |source, line| {
        (has_word(line, "unsafe") && !UNSAFE_FILES.contains(&source.path.as_str()))
            .then(|| "`unsafe` outside the files that may have it (see tests/tidy.rs)".to_owned())
    });
    for source in &sources {
        let text: Vec<&str> = source.text.lines().collect();
        for (at, line) in source.code.lines().enumerate() {
            let begins = line.contains("unsafe {") || line.contains("unsafe impl");
            let explained = text[at.saturating_sub(3)..=at]
                .iter()
                .any(|l| l.contains("SAFETY:"));
            if begins && !explained {
                wrong.push(format!("{}:{}: no SAFETY comment", source.path, at + 1));
            }
        }
    }
    for listed in UNSAFE_FILES {
        let needed = sources
            .iter()
            .any(|s| s.path == listed && has_word(&s.code, "unsafe"));
        if !needed {
            wrong.push(format!(
                "{listed} is listed in tests/tidy.rs but has no `unsafe`"
            ));
        }
    }
    report(wrong);
}

#[test]
fn no_result_of_io_is_thrown_away() {
    let mut wrong = Vec::new();
    for source in &rust_sources() {
        for (start, what) in discards(&source.code) {
            let line = source.code[..start].lines().count().max(1);
            wrong.push(format!("{}:{line}: {what}", source.path));
        }
    }
    report(wrong);
}

#[test]
fn packages_do_not_know_what_they_must_not() {
    let mut wrong = Vec::new();
    for (package, strangers) in STRANGERS {
        let below = format!("{package}/");
        let mut files: Vec<(String, String)> = rust_sources()
            .into_iter()
            .filter(|source| source.path.starts_with(&below))
            .map(|source| (source.path, source.code))
            .collect();
        let manifest = format!("{package}/Cargo.toml");
        let text = fs::read_to_string(root().join(&manifest))
            .unwrap_or_else(|error| panic!("{manifest}: {error}"));
        files.push((manifest, text));
        for (path, code) in files {
            for (at, line) in code.lines().enumerate() {
                let lower = line.to_lowercase();
                if let Some(word) = strangers.iter().find(|word| lower.contains(**word)) {
                    wrong.push(format!("{path}:{}: `{word}` in package {package}", at + 1));
                }
            }
        }
    }
    report(wrong);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let forbidden = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "docwork"),
        concat!("/tmp/", "notes"),
    ];
    let mut wrong = Vec::new();
    for path in files() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for (at, line) in text.lines().enumerate() {
            if let Some(word) = forbidden.iter().find(|word| line.contains(**word)) {
                wrong.push(format!("{path}:{}: `{word}`", at + 1));
            }
        }
    }
    report(wrong);
}

/// Cargo finds the files in `tests/` by itself; nothing may keep it from that, and a directory in it
/// is part of a test that names it.
#[test]
fn every_integration_test_is_run() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let mut wrong = Vec::new();
    for setting in ["autotests", "[[test]]"] {
        if manifest.contains(setting) {
            wrong.push(format!(
                "Cargo.toml has {setting}: which tests run is not plain any more"
            ));
        }
    }
    let all = files();
    let tests: Vec<&String> = all
        .iter()
        .filter(|path| path.starts_with("tests/") && path.ends_with(".rs"))
        .collect();
    for path in &tests {
        let parts: Vec<&str> = path.split('/').collect();
        match parts[1..] {
            [file] => {
                let text = fs::read_to_string(root().join(path)).expect("a readable test");
                if !text.contains("#[test]") {
                    wrong.push(format!("{path} has no test in it ({file})"));
                }
                // The one condition there may be is that of the long run.
                let conditional = text.lines().any(|line| {
                    line.starts_with("#![cfg(") && line != "#![cfg(feature = \"long\")]"
                });
                if conditional {
                    wrong.push(format!("{path} is not in every run"));
                }
            }
            [dir, ..] if tests.iter().any(|test| **test == format!("tests/{dir}.rs")) => {}
            _ => wrong.push(format!("{path} belongs to no test")),
        }
    }
    assert!(tests.len() > 5, "the tests were not found");
    let run = fs::read_to_string(root().join("scripts/test")).expect("scripts/test");
    if !run.contains("--features long") {
        wrong.push("scripts/test does not run the tests of the long run".to_owned());
    }
    report(wrong);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for path in files().iter().filter(|path| path.ends_with(".md")) {
        let text = fs::read_to_string(root().join(path)).expect("a readable document");
        let dir = Path::new(path).parent().unwrap_or(Path::new(""));
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = target.split('#').next().unwrap_or("");
            let external = target.contains("://") || target.starts_with("mailto:");
            if !external && !file.is_empty() && !root().join(dir).join(file).exists() {
                wrong.push(format!("{path}: ({target}) leads nowhere"));
            }
        }
    }
    report(wrong);
}

/// Fails with one line for each place that breaks a rule.
#[track_caller]
fn report(wrong: impl IntoIterator<Item = String>) {
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(
        wrong.is_empty(),
        "{} places:\n  {}",
        wrong.len(),
        wrong.join("\n  ")
    );
}

/// Asked at run time: with a target directory shared by two clones, the compiled-in path may be the
/// other's.
fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), Into::into)
}

/// Every file of the working tree, relative to the root, build products and history left out.
fn files() -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(root().join(&dir)).expect("a readable directory") {
            let entry = entry.expect("a readable entry");
            let name = entry.file_name();
            let path = dir.join(&name);
            let kind = entry.file_type().expect("the kind of an entry");
            if kind.is_dir() {
                if name != "target" && name != ".git" {
                    waiting.push(path);
                }
            } else if kind.is_file() {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

fn rust_sources() -> Vec<Source> {
    files()
        .into_iter()
        .filter(|path| path.ends_with(".rs"))
        .map(|path| {
            let text = fs::read_to_string(root().join(&path)).expect("a readable source file");
            Source {
                code: code_of(&text),
                path,
                text,
            }
        })
        .collect()
}

fn each_line(sources: &[Source], check: impl Fn(&Source, &str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for source in sources {
        for (at, line) in source.code.lines().enumerate() {
            if let Some(what) = check(source, line) {
                wrong.push(format!("{}:{}: {what}", source.path, at + 1));
            }
        }
    }
    wrong
}

fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(part_of_word) && !text[at + word.len()..].starts_with(part_of_word)
    })
}

/// Statements that bind an I/O result to `_`, or turn it into an `Option` that nobody reads.
fn discards(code: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let is_io = |statement: &str| IO_CALLS.iter().any(|call| statement.contains(call));
    for (at, _) in code.match_indices("let _ = ") {
        let statement = code[at..].split(';').next().unwrap_or("");
        if is_io(statement) {
            found.push((at, "`let _ =` drops the result of I/O"));
        }
    }
    for (at, _) in code.match_indices(".ok();") {
        let start = code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
        let statement = code[start..at].trim_start();
        // An assignment or a return reads the value.
        let read = statement.starts_with("let ") || statement.contains('=');
        if !read && !statement.starts_with("return") && is_io(statement) {
            found.push((at, "`.ok();` drops the result of I/O"));
        }
    }
    found
}

/// The text with comments and the insides of string and character literals replaced by spaces.
/// Lines stay where they are.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let part_of_word = before.is_alphanumeric() || before == '_';
        let (len, keep) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (block_comment(rest), false)
        } else if !part_of_word && raw_string(rest).is_some() {
            (raw_string(rest).unwrap_or(1), false)
        } else if first == '"' {
            (quoted(rest), false)
        } else if first == '\'' {
            character(rest).map_or((1, true), |len| (len, false))
        } else {
            (first.len_utf8(), true)
        };
        let (part, tail) = rest.split_at(len);
        if keep {
            code.push_str(part);
        } else {
            code.extend(part.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        before = first;
        rest = tail;
    }
    code
}

/// Length of a block comment; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Length of `r"..."`, `r#"..."#`, `br"..."` and so on, if the text starts with one.
fn raw_string(text: &str) -> Option<usize> {
    let after_b = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let after_r = after_b.strip_prefix('r')?;
    let inner = after_r.trim_start_matches('#');
    let hashes = after_r.len() - inner.len();
    let inner = inner.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - inner.len();
    Some(
        inner
            .find(&end)
            .map_or(text.len(), |at| start + at + end.len()),
    )
}

/// Length of a string or character literal that starts with its quote.
fn quoted(text: &str) -> usize {
    let mut characters = text.char_indices();
    let quote = characters.next().map(|(_, c)| c);
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if Some(c) == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// Length of a character literal; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut characters = text.chars().skip(1);
    let literal = match (characters.next()?, characters.next()?) {
        ('\\', _) => true,
        (_, next) => next == '\'',
    };
    literal.then(|| quoted(text))
}

#[test]
fn comments_and_literals_are_blanked_and_nothing_else() {
    // `~` stands for a blanked character.
    let cases = [
        ("a // todo!(\nb", "a ~~~~~~~~~\nb"),
        ("a /* x /* y */ z */ b", "a ~~~~~~~~~~~~~~~~~ b"),
        (r#"f("unsafe \" {", 'x')"#, "f(~~~~~~~~~~~~~, ~~~)"),
        ("let a: &'static str = c;", "let a: &'static str = c;"),
        ("r#\"unsafe \" {\"# + br\"x\"", "~~~~~~~~~~~~~~~ + ~~~~~"),
        ("for_r\"x\"", "for_r~~~"),
        ("'\\'' '\"' x", "~~~~ ~~~ x"),
    ];
    for (text, expected) in cases {
        assert_eq!(code_of(text), expected.replace('~', " "), "{text}");
    }
}

#[test]
fn dropped_results_are_recognised() {
    for bad in [
        "let _ = fs::copy(a, b);",
        "{ file\n.sync_all()\n.ok(); }",
        "let _ = f.write(b);",
    ] {
        assert_eq!(discards(bad).len(), 1, "{bad}");
    }
    for good in [
        "let _ = a + b;",
        "let n = f.read(b).ok();",
        "return f.read(b).ok();",
        "x.ok();",
    ] {
        assert!(discards(good).is_empty(), "{good}");
    }
}
