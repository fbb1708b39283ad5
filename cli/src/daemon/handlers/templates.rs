//! Templates.

use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorKind};
use crate::wire::sandbox::{BuiltTemplate, Template};
use crate::wire::{BuildTemplate, DeleteTemplate, ListTemplates};

/// Most steps of a template.
pub const STEPS_MAX: usize = 256;
/// Longest step in bytes.
pub const STEP_BYTES_MAX: usize = 64 << 10;

/// Lists templates by name.
///
/// # Errors
/// When the catalog cannot be read.
pub fn list_templates(daemon: &Daemon, _: &ListTemplates) -> Result<Vec<Template>, ApiError> {
    daemon.sandboxes.templates()
}

/// Makes a template of a directory or a snapshot, and runs commands in it. It goes on if nobody waits
/// for it any more.
///
/// # Errors
/// When there is no such directory or snapshot, the name is not allowed, or a command fails.
pub fn build_template(daemon: &Daemon, request: &BuildTemplate) -> Result<BuiltTemplate, ApiError> {
    check_steps(request)?;
    daemon.sandboxes.build_template(request)
}

/// Removes a template's name; its snapshot and the sandboxes that were made from it stay.
///
/// # Errors
/// When there is none of that name.
pub fn delete_template(daemon: &Daemon, request: &DeleteTemplate) -> Result<Template, ApiError> {
    daemon.sandboxes.delete_template(&request.name)
}

fn check_steps(request: &BuildTemplate) -> Result<(), ApiError> {
    let usage = |what: String| Err(ApiError::new(ErrorKind::Usage, what));
    if request.run.len() > STEPS_MAX {
        return usage(format!("a template has at most {STEPS_MAX} steps"));
    }
    let refused = |step: &&String| {
        step.trim().is_empty() || step.len() > STEP_BYTES_MAX || step.contains('\0')
    };
    match request.run.iter().find(refused) {
        Some(_) => usage(format!(
            "a step is a command for a shell, of at most {STEP_BYTES_MAX} bytes"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_beyond_their_bounds_are_refused() {
        let plain = BuildTemplate::default;
        let good = BuildTemplate {
            run: vec!["true".to_owned(); STEPS_MAX],
            ..plain()
        };
        assert!(check_steps(&good).is_ok());
        #[rustfmt::skip]
        let wrong = [
            BuildTemplate { run: vec!["true".to_owned(); STEPS_MAX + 1], ..plain() },
            BuildTemplate { run: vec![" \n".to_owned()], ..plain() },
            BuildTemplate { run: vec!["x".repeat(STEP_BYTES_MAX + 1)], ..plain() },
            BuildTemplate { run: vec!["echo \0".to_owned()], ..plain() },
        ];
        for request in wrong {
            assert_eq!(check_steps(&request).unwrap_err().kind, ErrorKind::Usage);
        }
    }
}
