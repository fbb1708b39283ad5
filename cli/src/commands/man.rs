//! `floe man`.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};

use super::{Cli, Context};
use crate::error::{ApiError, ErrorKind};

/// Print the manual page, or write those of all commands to a directory
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe man | man -l -
  floe man --out /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Directory to write one page per command to, made if missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    /// Carries it out.
    ///
    /// # Errors
    /// When a page cannot be written.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match &self.out {
            Some(dir) => {
                write_pages(dir).map_err(|error| {
                    let what = format!("cannot write manual pages to '{}'", dir.display());
                    ApiError::new(ErrorKind::Failed, what).caused_by(&error)
                })?;
                context
                    .output
                    .note(&format!("manual pages are in {}", dir.display()));
                Ok(())
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(Cli::command())
                    .render(&mut page)
                    .map_err(|error| {
                        ApiError::new(ErrorKind::Internal, "cannot make the page").caused_by(&error)
                    })?;
                context.output.text(&String::from_utf8_lossy(&page))
            }
        }
    }
}

fn write_pages(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_gets_a_page() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path()).unwrap();
        for name in [
            "floe",
            "floe-ws-create",
            "floe-snap-tree",
            "floe-daemon-run",
            "floe-sandbox-exec",
            "floe-template-build",
            "floe-serve",
            "floe-serve-key-add",
        ] {
            let page = std::fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}");
        }
    }
}
