//! Text that lines up and that no foreign characters can disturb.

use std::io;

/// Escapes control characters, so that a message cannot steer the terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    out
}

/// Shortens text to a number of characters, showing by `...` that it did.
#[must_use]
pub fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(3)).collect();
    format!("{kept}...")
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
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width - cell.chars().count() + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_characters() {
        let rows = [
            vec!["a".to_owned(), "1".to_owned()],
            vec!["läng".to_owned(), "22".to_owned()],
        ];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME  N\na     1\nläng  22\n");
        assert_eq!(table(&["NAME"], &[]), "NAME\n");
    }

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("grün"), "grün");
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
    }
}
