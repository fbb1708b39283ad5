//! Text that lines up and that no foreign characters can disturb.

use std::fmt::Display;
use std::io;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Escapes control characters, so that a message cannot steer the terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || breaks_lines_or_direction(c) {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    out
}

/// Whether a character that counts as none for control begins a line, or turns the direction in
/// which the rest of it is written.
fn breaks_lines_or_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first line that says anything.
#[must_use]
pub fn first_line(text: &str) -> &str {
    let mut lines = text.split(['\n', '\r']).map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

/// The columns of a terminal that text takes up.
#[must_use]
pub fn columns(text: &str) -> usize {
    text.width()
}

/// Shortens text to a number of columns, showing by `...` that it did, if there is room for that.
#[must_use]
pub fn shortened(text: &str, columns_max: usize) -> String {
    if columns(text) <= columns_max {
        return text.to_owned();
    }
    let dots = if columns_max > 3 { "..." } else { "" };
    let mut left = columns_max - dots.len();
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{kept}{dots}")
}

/// Pads text with spaces to a number of columns.
#[must_use]
pub fn padded(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(columns(text))))
}

/// The width to lay text out for: the terminal's, else that of COLUMNS, else 100.
#[must_use]
pub fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| size.ws_col);
    let variable = || {
        std::env::var("COLUMNS")
            .ok()
            .and_then(|text| text.parse().ok())
    };
    terminal
        .filter(|&columns| columns > 0)
        .or_else(variable)
        .map_or(100, usize::from)
        .max(40)
}

/// A size in bytes: `0 B`, `17 KiB`, `1.4 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    let mut whole = bytes;
    while whole >= 1024 * 1024 && unit + 1 < units.len() {
        whole /= 1024;
        unit += 1;
    }
    let tenths = whole * 10 / 1024;
    if tenths < 100 {
        format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
    } else {
        format!("{} {}", tenths / 10, units[unit])
    }
}

/// Lays rows out in columns, two spaces apart, without trailing spaces.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns(cell));
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&padded(cell, width + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A number of things; English makes most plurals with an s.
#[must_use]
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    if count == N::from(1) {
        format!("1 {thing}")
    } else {
        format!("{count} {thing}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_what_is_seen() {
        let rows = [
            vec!["a".to_owned(), "1".to_owned()],
            vec!["läng".to_owned(), "22".to_owned()],
            vec!["日本".to_owned(), "3".to_owned()],
            vec!["e\u{301}".to_owned(), "4".to_owned()],
        ];
        let expected = "NAME  N\na     1\nläng  22\n日本  3\ne\u{301}     4\n";
        assert_eq!(table(&["NAME", "N"], &rows), expected);
        assert_eq!(table(&["NAME"], &[]), "NAME\n");
    }

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("grün"), "grün");
        assert_eq!(printable("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
    }

    #[test]
    fn sizes_have_two_or_three_digits() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(17 << 10), "17 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(size(u64::MAX), "15 EiB");
    }

    #[test]
    fn long_text_is_shortened_visibly() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abc...");
        assert_eq!(shortened("日本語文字", 8), "日本...", "two columns each");
        assert_eq!(shortened("日本語文字", 10), "日本語文字");
        for (max, kept) in [(0, ""), (1, "a"), (3, "abc"), (4, "a...")] {
            assert_eq!(shortened("abcdefg", max), kept);
        }
    }
}
