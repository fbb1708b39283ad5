//! Starting a program inside control groups.

use std::path::PathBuf;
use std::process::Command;

/// Enters so many control groups and becomes what follows. 0 is whoever writes it.
const ENTER: &str = r#"
n=$1; shift
while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit 126; shift; n=$((n - 1)); done
exec "$@"
"#;

/// A command that enters control groups, by the files for that, and becomes the program whose name and
/// arguments are added to it. Status 126: a group could not be entered; 127: there is no such program.
pub(in crate::daemon::sandboxes) fn entering(groups: &[PathBuf]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", ENTER, "sh"]);
    command.arg(groups.len().to_string()).args(groups);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_runs_in_the_groups_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let groups = ["a", "b"].map(|name| dir.path().join(name));
        let output = entering(&groups)
            .args(["printf", "%s-", "x y", "z"])
            .output();
        assert_eq!(output.unwrap().stdout, b"x y-z-");
        for group in &groups {
            assert_eq!(std::fs::read_to_string(group).unwrap(), "0\n");
        }
        let gone = [groups[0].clone(), dir.path().join("none/procs")];
        let output = entering(&gone).args(["echo", "ran"]).output().unwrap();
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(126), &b""[..])
        );
        let missing = entering(&[]).arg("no-such-program").output().unwrap();
        assert_eq!(missing.status.code(), Some(127));
    }
}
