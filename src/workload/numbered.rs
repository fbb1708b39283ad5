//! Numbered files: after a crash, each number tells exactly what its file must hold.
//!
//! Step `n` is one file operation. Once [`Numbered::step`] has returned, the operation was
//! acknowledged and must be there for ever. The one that was under way when the daemon died may
//! have happened or not; [`Numbered::check`] accepts both, and nothing in between: a write of
//! [`RECORD`] bytes is there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Files in one directory.
const PER_DIR: u64 = 50;
/// Bytes of one record.
pub const RECORD: usize = 64;
/// Steps that work on one file: create, append, rename.
const STEPS: u64 = 3;

/// Writes numbered files below one directory.
#[derive(Debug)]
pub struct Numbered {
    root: PathBuf,
    next: u64,
}

impl Numbered {
    /// Starts at step `next` (0 for the first time, [`Numbered::acknowledged`] to continue).
    #[must_use]
    pub fn new(root: &Path, next: u64) -> Self {
        Self {
            root: root.to_path_buf(),
            next,
        }
    }

    /// How many steps were acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.next
    }

    /// Does the next operation.
    ///
    /// A step that failed can be done again: each first looks at what an unacknowledged try left.
    ///
    /// # Errors
    /// Whatever the file system says; the step then does not count as acknowledged.
    pub fn step(&mut self) -> io::Result<()> {
        let file = self.next / STEPS;
        let dir = self.root.join(format!("d{}", file / PER_DIR));
        let (draft, done) = (
            dir.join(format!("f{file}.part")),
            dir.join(format!("f{file}")),
        );
        match self.next % STEPS {
            0 => {
                fs::create_dir_all(&dir)?;
                File::create(&draft)?.write_all(&record(file, 0))?;
            }
            1 => {
                let mut target = OpenOptions::new().append(true).open(&draft)?;
                if target.metadata()?.len() == RECORD as u64 {
                    target.write_all(&record(file, 1))?;
                }
            }
            _ => {
                if draft.try_exists()? {
                    fs::rename(&draft, &done)?;
                }
            }
        }
        self.next += 1;
        Ok(())
    }

    /// Checks that everything acknowledged is there, whole, and nothing else is.
    ///
    /// # Errors
    /// One sentence for each thing that is lost or wrong.
    pub fn check(root: &Path, acknowledged: u64) -> Result<(), Vec<String>> {
        Self::check_since(root, 0, acknowledged)
    }

    /// Checks only the files that steps from `since` on have worked at.
    ///
    /// # Errors
    /// One sentence for each thing that is lost or wrong.
    pub fn check_since(root: &Path, since: u64, acknowledged: u64) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let files = acknowledged / STEPS + 1;
        for file in since / STEPS..files {
            let dir = root.join(format!("d{}", file / PER_DIR));
            let draft = dir.join(format!("f{file}.part"));
            let done = dir.join(format!("f{file}"));
            let steps = acknowledged.saturating_sub(file * STEPS).min(STEPS);
            if let Err(what) = check_file(file, steps, &read(&draft), &read(&done)) {
                wrong.push(format!(
                    "file {file} after {steps} steps of {STEPS}: {what}"
                ));
            }
        }
        let next = root
            .join(format!("d{}", files / PER_DIR))
            .join(format!("f{files}.part"));
        if read(&next) != Ok(None) {
            wrong.push(format!(
                "{} is there, which was never begun",
                next.display()
            ));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

/// Contents of the draft and of the final name.
type State<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

type Contents = Result<Option<Vec<u8>>, String>;

fn read(path: &Path) -> Contents {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// `steps` are acknowledged; one more may have been under way.
fn check_file(file: u64, steps: u64, draft: &Contents, done: &Contents) -> Result<(), String> {
    let (draft, done) = (draft.as_ref()?, done.as_ref()?);
    let one = record(file, 0).to_vec();
    let two = [record(file, 0), record(file, 1)].concat();
    // Creating and writing the first record are two operations: an empty draft is between them.
    let states: [State; 5] = [
        (None, None),
        (Some(b""), None),
        (Some(&one), None),
        (Some(&two), None),
        (None, Some(&two)),
    ];
    let (first, last) = match steps {
        0 => (0, 2),
        1 => (2, 3),
        2 => (3, 4),
        _ => (4, 4),
    };
    if states[first..=last].contains(&(draft.as_deref(), done.as_deref())) {
        return Ok(());
    }
    let describe = |contents: &Option<Vec<u8>>| match contents {
        None => "missing".to_owned(),
        Some(bytes) => format!("{} bytes", bytes.len()),
    };
    Err(format!(
        "draft {}, final name {}",
        describe(draft),
        describe(done)
    ))
}

fn record(file: u64, part: u64) -> [u8; RECORD] {
    let mut bytes = [b'.'; RECORD];
    let text = format!("file {file} part {part}\n");
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_checks_at_every_step() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbered = Numbered::new(dir.path(), 0);
        for step in 0..200 {
            assert_eq!(numbered.acknowledged(), step);
            assert_eq!(Numbered::check(dir.path(), step), Ok(()));
            numbered.step().unwrap();
            // The step under way when the daemon died may be there.
            assert_eq!(
                Numbered::check(dir.path(), step),
                Ok(()),
                "step {step} not acknowledged"
            );
        }
    }

    #[test]
    fn losses_and_torn_writes_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbered = Numbered::new(dir.path(), 0);
        for _ in 0..100 {
            numbered.step().unwrap();
        }
        assert!(
            Numbered::check(dir.path(), 103).is_err(),
            "a step that never happened"
        );
        assert!(
            Numbered::check(dir.path(), 90).is_err(),
            "more than was ever begun"
        );
        fs::write(dir.path().join("d0/f7"), &record(7, 0)[..10]).unwrap();
        let wrong = Numbered::check(dir.path(), 100).unwrap_err();
        assert!(wrong.len() == 1 && wrong[0].contains("file 7"), "{wrong:?}");
        fs::remove_file(dir.path().join("d0/f8")).unwrap();
        assert_eq!(Numbered::check(dir.path(), 100).unwrap_err().len(), 2);
        // Files 7 and 8 were at work in steps 21 to 26.
        assert_eq!(
            Numbered::check_since(dir.path(), 24, 100)
                .unwrap_err()
                .len(),
            1
        );
        assert_eq!(Numbered::check_since(dir.path(), 27, 100), Ok(()));
    }

    #[test]
    fn a_step_can_be_repeated_after_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbered = Numbered::new(dir.path(), 0);
        for step in 0..30 {
            numbered.step().unwrap();
            numbered = Numbered::new(dir.path(), step);
            numbered.step().unwrap();
        }
        assert_eq!(Numbered::check(dir.path(), 30), Ok(()));
    }
}
