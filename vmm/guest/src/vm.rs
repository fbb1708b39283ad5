//! What daemon and agent agree on for virtual machines: the port, the file systems' tags, and the
//! options on the kernel's command line.
//!
//! Invariant: [`VmOptions::parse`] takes any bytes, and what [`VmOptions`] prints it reads back.
//! `docs/guest.md` is the description.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// The vsock port on which the agent of a virtual machine waits for the daemon. Below 1,024, so that
/// nobody but root may take it.
pub const AGENT_PORT: u32 = 1000;

/// Address of the host on every vsock. Source: vsock(7), `VMADDR_CID_HOST`.
pub const HOST_CID: u32 = 2;

/// Tag of the virtio-fs device that becomes the root.
pub const ROOT_TAG: &str = "root";

/// Tag of the virtio-fs device of the workspace.
pub const WORKSPACE_TAG: &str = "workspace";

/// Where the workspace is mounted.
pub const WORKSPACE_DIR: &str = "/workspace";

/// The name of a machine that was given none.
pub const HOSTNAME: &str = "floe";

/// How the line on the console begins with which init says why the machine is no good, before it switches
/// it off. What else the agent prints there begins otherwise.
pub const GAVE_UP: &str = "floe-guest: gave up: ";

/// Longest host name in bytes. Source: uname(2), `__NEW_UTS_LEN`.
pub const HOSTNAME_MAX: usize = 64;

/// Longest wait for the root's device that may be asked for, in seconds.
pub const ROOT_WAIT_S_MAX: u32 = 3600;

const PREFIX: &[u8] = b"floe.";

/// What `/tmp` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tmp {
    /// A directory of the root: what is in it is in snapshots, as in a process sandbox.
    #[default]
    Root,
    /// A file system in memory, which is gone with the machine.
    Memory,
}

/// The options for init on a kernel's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmOptions {
    /// `floe.workspace`: mount the tag `workspace`.
    pub workspace: bool,
    /// `floe.hostname=NAME`.
    pub hostname: String,
    /// `floe.tmp=root|memory`.
    pub tmp: Tmp,
    /// `floe.root_wait=SECONDS`: how long to wait for the root's device.
    pub root_wait: Duration,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self {
            workspace: false,
            hostname: HOSTNAME.to_owned(),
            tmp: Tmp::Root,
            root_wait: Duration::from_secs(30),
        }
    }
}

/// Why a command line is refused. What is shown of it has no control characters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("the kernel command line has the option '{0}', which does not exist")]
    Unknown(String),
    /// It is there more than once.
    #[error("the kernel command line has the option '{0}' twice")]
    Twice(String),
    /// Its value makes no sense.
    #[error("the kernel command line has '{option}': {wanted}")]
    Value {
        /// The option as given.
        option: String,
        /// What would be allowed.
        wanted: &'static str,
    },
}

impl VmOptions {
    /// Reads them from a whole command line. What does not begin with `floe.` is the kernel's, as is
    /// everything after `--`.
    ///
    /// # Errors
    ///
    /// [`OptionError`]: a slip is not ignored.
    pub fn parse(cmdline: &[u8]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let mut seen: Vec<&[u8]> = Vec::new();
        for word in words(cmdline) {
            if word == b"--" {
                break;
            }
            if !word.starts_with(PREFIX) {
                continue;
            }
            let (name, value) = match word.iter().position(|byte| *byte == b'=') {
                Some(at) => (&word[..at], Some(&word[at + 1..])),
                None => (word, None),
            };
            if seen.contains(&name) {
                return Err(OptionError::Twice(printable(name)));
            }
            seen.push(name);
            options.set(word, name, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, word: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), OptionError> {
        let wrong = |wanted| OptionError::Value {
            option: printable(word),
            wanted,
        };
        match (name, value) {
            (b"floe.workspace", None) => self.workspace = true,
            (b"floe.workspace", Some(_)) => return Err(wrong("it takes no value")),
            (b"floe.tmp", Some(b"root")) => self.tmp = Tmp::Root,
            (b"floe.tmp", Some(b"memory")) => self.tmp = Tmp::Memory,
            (b"floe.tmp", _) => return Err(wrong("'root' or 'memory' is meant")),
            (b"floe.hostname", value) => {
                let name = value.and_then(hostname);
                self.hostname = name.ok_or_else(|| {
                    wrong("a name of 1 to 64 letters, digits, '-' and '.' is meant")
                })?;
            }
            (b"floe.root_wait", value) => {
                let seconds = value.and_then(seconds);
                self.root_wait =
                    seconds.ok_or_else(|| wrong("a number of seconds from 1 to 3600 is meant"))?;
            }
            _ => return Err(OptionError::Unknown(printable(name))),
        }
        Ok(())
    }
}

/// As it stands on a command line.
impl fmt::Display for VmOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tmp = match self.tmp {
            Tmp::Root => "root",
            Tmp::Memory => "memory",
        };
        let seconds = self.root_wait.as_secs();
        let name = &self.hostname;
        write!(
            f,
            "floe.hostname={name} floe.tmp={tmp} floe.root_wait={seconds}"
        )?;
        if self.workspace {
            write!(f, " floe.workspace")?;
        }
        Ok(())
    }
}

/// Whether a machine may have this name.
#[must_use]
pub fn is_hostname(name: &str) -> bool {
    hostname(name.as_bytes()).is_some()
}

fn hostname(name: &[u8]) -> Option<String> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let inside = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let fits = (1..=HOSTNAME_MAX).contains(&name.len()) && name.iter().all(allowed);
    (fits && inside(name.first()) && inside(name.last()))
        .then(|| String::from_utf8_lossy(name).into_owned())
}

fn seconds(text: &[u8]) -> Option<Duration> {
    let digits = text.len() <= 4 && text.iter().all(u8::is_ascii_digit);
    let number: u32 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (digits && (1..=ROOT_WAIT_S_MAX).contains(&number))
        .then(|| Duration::from_secs(u64::from(number)))
}

/// The words of a command line. White space in double quotes does not divide, so that what is
/// quoted in another option's value is not taken for an option. Source: `next_arg` in the kernel's
/// `lib/cmdline.c`.
fn words(cmdline: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    cmdline
        .split(move |byte| {
            if *byte == b'"' {
                quoted = !quoted;
            }
            !quoted && (byte.is_ascii_whitespace() || *byte == 0)
        })
        .filter(|word| !word.is_empty())
}

fn printable(bytes: &[u8]) -> String {
    const SHOWN: usize = 100;
    let shown = bytes.get(..SHOWN).unwrap_or(bytes);
    shown.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<VmOptions, OptionError> {
        VmOptions::parse(text.as_bytes())
    }

    #[test]
    fn the_kernels_own_options_are_left_alone() {
        let found = parse("console=ttyS0 panic=-1 reboot=k quiet floes floe=1\n");
        assert_eq!(found, Ok(VmOptions::default()));
        assert_eq!(parse(""), Ok(VmOptions::default()));
    }

    #[test]
    fn every_option_is_read() {
        let text = "quiet floe.workspace floe.hostname=a-1.b floe.tmp=memory floe.root_wait=7";
        let wanted = VmOptions {
            workspace: true,
            hostname: "a-1.b".to_owned(),
            tmp: Tmp::Memory,
            root_wait: Duration::from_secs(7),
        };
        assert_eq!(parse(text), Ok(wanted.clone()));
        assert_eq!(parse(&wanted.to_string()), Ok(wanted));
    }

    #[test]
    fn slips_are_refused_and_named() {
        for (text, shown) in [
            ("floe.worskpace", "floe.worskpace"),
            ("floe.", "'floe.'"),
            ("floe.workspace=1", "no value"),
            ("floe.tmp", "'root' or 'memory'"),
            ("floe.tmp=disk", "floe.tmp=disk"),
            ("floe.root_wait=0", "1 to 3600"),
            ("floe.root_wait=+5", "1 to 3600"),
            ("floe.root_wait=99999999999999999999", "1 to 3600"),
            ("floe.hostname=", "1 to 64"),
            ("floe.hostname=-a", "1 to 64"),
            ("floe.hostname=\"a b\"", "1 to 64"),
            ("floe.tmp=root floe.tmp=memory", "twice"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(shown), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_quoted_or_after_two_dashes_is_no_option() {
        let found = parse("x=\"a floe.workspace b\" -- floe.nonsense");
        assert_eq!(found, Ok(VmOptions::default()));
    }

    #[test]
    fn an_error_shows_no_control_characters() {
        let error = VmOptions::parse(b"floe.\x1b[2J\xff").unwrap_err();
        assert!(
            error
                .to_string()
                .bytes()
                .all(|byte| (32..127).contains(&byte))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_options_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(options) = VmOptions::parse(&bytes) {
                prop_assert!(is_hostname(&options.hostname));
                prop_assert_eq!(parse(&options.to_string()), Ok(options));
            }
        }

        #[test]
        fn any_value_after_a_known_name_is_taken_or_refused(value in "[ -~]{0,80}") {
            for name in ["hostname", "tmp", "root_wait", "workspace"] {
                let text = format!("floe.{name}={value}");
                if let Ok(options) = parse(&text) {
                    prop_assert_eq!(parse(&options.to_string()), Ok(options));
                }
            }
        }
    }
}
