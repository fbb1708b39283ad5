//! A progress line for long work: nothing for the first quarter of a second, then on stderr, and
//! only if that is a terminal. It is wiped when the work ends.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::wire::Progress;

const SILENCE: Duration = Duration::from_millis(250);
const DRAWS_PER_SECOND: u8 = 15;

/// Shows how far an import or an adoption is. Dropping it wipes the line.
pub struct ImportBar {
    doing: &'static str,
    wanted: bool,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl ImportBar {
    /// A bar that says what is being done and is drawn only if `wanted` and stderr is a terminal.
    #[must_use]
    pub fn new(doing: &'static str, wanted: bool) -> Self {
        let wanted = wanted && std::io::stderr().is_terminal();
        Self {
            doing,
            wanted,
            started: Instant::now(),
            bar: None,
        }
    }

    /// Takes news from the daemon.
    pub fn update(&mut self, progress: &Progress) {
        if !self.wanted || self.started.elapsed() < SILENCE {
            return;
        }
        let doing = self.doing;
        let bar = self.bar.get_or_insert_with(|| {
            let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
            ProgressBar::with_draw_target(None, target).with_style(style(doing))
        });
        bar.set_message(message(progress));
    }
}

impl Drop for ImportBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(doing: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("{doing} {{spinner}} {{msg}}"))
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn message(progress: &Progress) -> String {
    let of = progress
        .total
        .map_or_else(String::new, |total| format!(" of {}", HumanCount(total)));
    format!(
        "{}{of} files, {}",
        HumanCount(progress.files),
        BinaryBytes(progress.bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_counts_files_and_bytes() {
        let progress = Progress {
            files: 1_200,
            bytes: 2048,
            total: None,
        };
        assert_eq!(message(&progress), "1,200 files, 2.00 KiB");
        let total = Some(3_000);
        let progress = Progress { total, ..progress };
        assert_eq!(message(&progress), "1,200 of 3,000 files, 2.00 KiB");
    }
}
