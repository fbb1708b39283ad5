//! Tables and histograms in characters.

use super::report::Picture;
use super::stats::{Summary, grouped, shown};

/// Widest bar of a histogram in characters.
const BAR_WIDTH: u64 = 50;

/// Lays a table out: the first column to the left, figures to the right, a blank line above.
pub(super) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (at, (cell, &width)) in cells.zip(&widths).enumerate() {
            if at == 0 {
                line.push_str(&format!("{cell:width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        format!("{}\n", line.trim_end())
    };
    let mut text = format!("\n{}", line(&mut head.iter().copied()));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Draws the classes of a histogram as bars, with the percentiles marked.
pub(super) fn histogram(picture: &Picture) -> String {
    let Summary {
        samples,
        p50_ns,
        p99_ns,
        ..
    } = picture.summary;
    let mut text = format!("\n{}\n", picture.title);
    let most = picture.bars.iter().map(|bar| bar.count).max().unwrap_or(1);
    for bar in &picture.bars {
        let width = (bar.count * BAR_WIDTH).div_ceil(most.max(1));
        let drawn = "#".repeat(usize::try_from(width).unwrap_or(0));
        let mut marks = String::new();
        for (name, at) in [("p50", p50_ns), ("p99", p99_ns)] {
            if (bar.from_ns..bar.below_ns).contains(&at) {
                marks.push_str(&format!("  <- {name} {}", shown(at)));
            }
        }
        let share = bar.count as f64 * 100.0 / samples.max(1) as f64;
        text.push_str(&format!(
            "  {:>7} - {:>7} {:>7} {share:>5.1}% |{drawn}{marks}\n",
            shown(bar.from_ns),
            shown(bar.below_ns),
            grouped(bar.count),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::report::Section;
    use crate::bench::stats::Times;

    #[test]
    fn a_histogram_marks_its_percentiles_and_leaves_nothing_out() {
        let mut section = Section::new("x", "");
        let mut times = Times::default();
        for us in [10, 20, 20, 30, 400] {
            times.record(Duration::from_micros(us));
        }
        section.picture("title", &times);
        let text = histogram(&section.pictures[0]);
        assert!(text.contains("<- p50") && text.contains("<- p99"), "{text}");
        let counted: u64 = section.pictures[0].bars.iter().map(|bar| bar.count).sum();
        assert_eq!(counted, 5);
        assert!(text.contains("20.0% |"), "{text}");
    }
}
