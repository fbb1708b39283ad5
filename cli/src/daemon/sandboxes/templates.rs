//! Templates: what sandboxes start from, and how they are built.
//!
//! A step of a build is a command that runs as root in a sandbox of its own, and the snapshot of what it left.
//! The snapshot has the label `floe.step`: a digest of what the step stood on and of its command. So a step is
//! skipped when there is a snapshot with its digest: nothing before it has changed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use floe_fs::id::{SnapshotId, TemplateName, WorkspaceName};
use floe_fs::{DeleteSelection, FindError, SnapshotFilter, SnapshotOptions, TemplateRecord};

use tracing::warn;

use super::spec::rfc3339;
use super::{Answer, Sandboxes, base};
use crate::agent::{ProcessEvent, StartProcess};
use crate::error::{ApiError, ErrorKind};
use crate::wire::sandbox::{Attached, BuiltStep, BuiltTemplate, Template};
use crate::wire::{BuildTemplate, CreateSandbox};

/// The label of a step's snapshot.
const STEP: &str = "floe.step";
/// What a recipe of the template `base` begins with when Floe made it.
const OF_HOST: &str = "host:";
/// Longest time of a step.
const STEP_MAX: Duration = Duration::from_secs(3600);
/// How much of a failed step's output is told.
const TOLD_MAX: usize = 4096;

impl Sandboxes {
    /// The snapshot that a template's name, or a snapshot's id or name, stands for.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(super) fn resolve(&self, reference: &str) -> Answer<SnapshotId> {
        if let Ok(name) = TemplateName::parse(reference) {
            if name.as_str() == base::NAME {
                return self.base();
            }
            if let Some(template) = self.store.template(&name)? {
                return Ok(template.snapshot);
            }
        }
        match self.store.find_snapshot(reference) {
            Ok(found) => Ok(found.id),
            Err(FindError::NotFound { .. }) => {
                let what = format!("there is no template or snapshot '{reference}'");
                Err(ApiError::new(ErrorKind::NotFound, what)
                    .hint("see what there is with `floe template list` and `floe snap list`"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The snapshot of the template `base`: made if there is none, and again if the host's programs are not
    /// what they were. One that somebody built under that name is theirs.
    fn base(&self) -> Answer<SnapshotId> {
        let _one = self.making_base.lock();
        let name = TemplateName::parse(base::NAME)?;
        let recipe = format!("{OF_HOST}{}", base::fingerprint());
        if let Some(there) = self.store.template(&name)? {
            let made_here = there
                .recipe
                .as_ref()
                .is_some_and(|recipe| recipe.starts_with(OF_HOST));
            if !made_here || there.recipe.as_ref() == Some(&recipe) {
                return Ok(there.snapshot);
            }
        }
        let old = self.store.template(&name)?;
        let made = base::make(&self.store, &self.mounts)?;
        let new = self
            .store
            .set_template(&name, &made, Some(&recipe))?
            .snapshot;
        // What stands on the old one keeps what it needs of it.
        if let Some(old) = old.filter(|old| old.snapshot != new) {
            let old = DeleteSelection::These(vec![old.snapshot.to_string()]);
            match self.store.delete_snapshots(&old, false) {
                Ok(_) => {}
                Err(error) => warn!(%error, "an old snapshot of the template 'base' stays"),
            }
        }
        Ok(new)
    }

    /// Lists templates by name.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn templates(&self) -> Answer<Vec<Template>> {
        Ok(self
            .store
            .templates()?
            .into_iter()
            .map(Template::from)
            .collect())
    }

    /// Removes a template's name. Its snapshot stays, and sandboxes go on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn delete_template(&self, name: &str) -> Answer<Template> {
        let parsed = TemplateName::parse(name)?;
        let there = self.store.template(&parsed)?;
        match there {
            Some(there) if self.store.delete_template(&parsed)? => Ok(there.into()),
            _ => Err(ApiError::new(
                ErrorKind::NotFound,
                format!("there is no template '{name}'"),
            )
            .hint("see what there is with `floe template list`")),
        }
    }

    /// Makes a template: of a directory, a snapshot or another template, with what commands do to it.
    ///
    /// # Errors
    /// When what it starts from cannot be used, or a command fails: the template is as before then, and steps that were
    /// done are skipped the next time.
    pub fn build_template(&self, request: &BuildTemplate) -> Answer<BuiltTemplate> {
        self.refuse_when_ending()?;
        let name = TemplateName::parse(&request.name)?;
        let mut now = match (&request.from_dir, &request.from_snapshot) {
            (Some(_), Some(_)) => {
                let what = "a template starts from a directory or from a snapshot, not from both";
                return Err(ApiError::new(ErrorKind::Usage, what));
            }
            (Some(dir), None) => self.imported(&dir.to_path())?,
            (None, from) => self.resolve(from.as_deref().unwrap_or(base::NAME))?,
        };
        let mut digest = blake3::hash(now.as_str().as_bytes());
        let mut steps = Vec::new();
        for run in &request.run {
            let mut next = blake3::Hasher::new();
            next.update(digest.as_bytes()).update(run.as_bytes());
            digest = next.finalize();
            let label = digest.to_hex().to_string();
            let (snapshot, skipped) = match self.step_done(&label)? {
                Some(done) => (done, true),
                None => (self.step(&now, run, &label)?, false),
            };
            now = snapshot;
            steps.push(BuiltStep {
                run: run.clone(),
                snapshot: now.to_string(),
                skipped,
            });
        }
        let template = self.store.set_template(&name, &now, None)?.into();
        Ok(BuiltTemplate { template, steps })
    }

    /// The snapshot of a step that was done before.
    fn step_done(&self, label: &str) -> Answer<Option<SnapshotId>> {
        let filter = SnapshotFilter {
            labels: BTreeMap::from([(STEP.to_owned(), label.to_owned())]),
            limit: Some(1),
            ..SnapshotFilter::default()
        };
        Ok(self.store.snapshots(&filter)?.pop().map(|found| found.id))
    }

    /// A snapshot of a copy of a directory; the last one if nothing there has changed.
    fn imported(&self, dir: &Path) -> Answer<SnapshotId> {
        let failed = |error: std::io::Error| {
            let what = format!("cannot read '{}'", dir.display());
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        };
        if !dir.is_absolute() {
            let what = format!("'{}' is not an absolute path", dir.display());
            return Err(ApiError::new(ErrorKind::Usage, what));
        }
        let label = tree_digest(dir).map_err(failed)?;
        if let Some(there) = self.step_done(&label)? {
            return Ok(there);
        }
        let name = WorkspaceName::parse(&format!("template-{}", super::create::new_id()?))?;
        self.store
            .import_workspace(&name, dir, &mut |_| ControlFlow::Continue(()))?;
        let options = SnapshotOptions {
            message: Some(format!("copy of {}", dir.display())),
            labels: BTreeMap::from([(STEP.to_owned(), label)]),
            ..SnapshotOptions::default()
        };
        let taken = self.store.snapshot(name.as_str(), &options);
        self.store.delete_workspace(name.as_str())?;
        Ok(taken?.id)
    }

    /// Runs a command in a sandbox on a snapshot and takes a snapshot of what it left.
    fn step(&self, on: &SnapshotId, run: &str, label: &str) -> Answer<SnapshotId> {
        let request = CreateSandbox {
            template: Some(on.to_string()),
            network: true,
            ..CreateSandbox::default()
        };
        let made = self.make(&request, Attached::Created, true)?.sandbox;
        let result = self.run_step(&made.id, run).and_then(|()| {
            let options = SnapshotOptions {
                message: Some(run.to_owned()),
                labels: BTreeMap::from([(STEP.to_owned(), label.to_owned())]),
                ..SnapshotOptions::default()
            };
            Ok(self.store.snapshot(&made.workspace, &options)?.id)
        });
        let removed = self.kill(&made.id);
        let snapshot = result?;
        removed?;
        Ok(snapshot)
    }

    fn run_step(&self, sandbox: &str, run: &str) -> Answer<()> {
        let failed = |what: String, said: &[u8]| {
            let mut error = ApiError::new(ErrorKind::Failed, format!("{what}: {run}"));
            let said = String::from_utf8_lossy(said);
            error.causes.extend(said.lines().map(str::to_owned));
            Err(error)
        };
        self.runtime.block_on(async {
            let agent = self.agent(sandbox).await?;
            let mut process = agent
                .start(StartProcess {
                    cmd: "/bin/sh".to_owned(),
                    args: vec!["-ec".to_owned(), run.to_owned()],
                    user: Some("root".to_owned()),
                    cwd: Some("/".to_owned()),
                    ..StartProcess::default()
                })
                .await?;
            let mut said = Vec::new();
            let until = tokio::time::Instant::now() + STEP_MAX;
            loop {
                match tokio::time::timeout_at(until, process.next()).await {
                    Err(_) => return failed("a step takes longer than an hour".to_owned(), &said),
                    Ok(None) => return failed("the sandbox of a step ended".to_owned(), &said),
                    Ok(Some(ProcessEvent::End { exit_code: 0, .. })) => return Ok(()),
                    Ok(Some(ProcessEvent::End { status, .. })) => {
                        return failed(format!("a step failed ({status})"), &said);
                    }
                    Ok(Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes))) => {
                        said.extend_from_slice(&bytes);
                        said.drain(..said.len().saturating_sub(TOLD_MAX));
                    }
                    Ok(Some(_)) => {}
                }
            }
        })
    }
}

impl From<TemplateRecord> for Template {
    fn from(record: TemplateRecord) -> Self {
        Self {
            name: record.name,
            snapshot: record.snapshot.to_string(),
            updated_at: rfc3339(record.updated_at),
        }
    }
}

/// A digest of what a directory holds: names, kinds, modes, owners, sizes and times, not contents.
fn tree_digest(dir: &Path) -> std::io::Result<String> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"floe.import 1\n");
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = std::fs::symlink_metadata(&path)?;
        let relative = path.strip_prefix(dir).unwrap_or(&path);
        hasher.update(&(relative.as_os_str().len() as u64).to_le_bytes());
        hasher.update(relative.as_os_str().as_bytes());
        let told = format!(
            "\0{:o} {} {} {} {}.{} {}.{}\n",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            if meta.is_dir() { 0 } else { meta.size() },
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        );
        hasher.update(told.as_bytes());
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path)?;
            let mut below = entries
                .map(|entry| Ok(entry?.path()))
                .collect::<std::io::Result<Vec<_>>>()?;
            below.sort();
            waiting.extend(below.into_iter().rev());
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_a_directory_changes_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/f"), "1").unwrap();
        let before = tree_digest(dir.path()).unwrap();
        assert_eq!(tree_digest(dir.path()).unwrap(), before);
        std::fs::write(dir.path().join("a/f"), "22").unwrap();
        let after = tree_digest(dir.path()).unwrap();
        assert_ne!(after, before);
        std::fs::rename(dir.path().join("a/f"), dir.path().join("a/g")).unwrap();
        assert_ne!(tree_digest(dir.path()).unwrap(), after);
    }
}
