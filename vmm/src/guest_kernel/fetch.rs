//! Gets the distribution's kernel with its package manager: downloaded and unpacked, not installed.
//!
//! The package manager checks the package against its signed lists. Debian and Ubuntu.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thiserror::Error;

/// Where in the working directory packages are unpacked.
const TREE: &str = "tree";

/// A distribution whose kernel this code can fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Debian: the cloud kernel is one package.
    Debian,
    /// Ubuntu: kernel and modules are two packages.
    Ubuntu,
}

/// Why the distribution's kernel could not be had.
#[derive(Debug, Error)]
pub enum FetchError {
    /// This is neither Debian nor Ubuntu.
    #[error("fetching a kernel is supported on Debian and Ubuntu, and this is {0}")]
    Distribution(String),
    /// A program is not there.
    #[error("cannot run {program}")]
    Program {
        /// Its name.
        program: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {said}")]
    Failed {
        /// Its name.
        program: &'static str,
        /// The last of what it said.
        said: String,
    },
    /// The package lists know no kernel.
    #[error("the package lists have no {0}")]
    NoPackage(&'static str),
    /// The package is not as expected.
    #[error("the package {package} has no {what}")]
    Content {
        /// Its name.
        package: String,
        /// What is not there.
        what: String,
    },
    /// The working directory cannot be used.
    #[error("cannot use {}", .path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl FetchError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Distribution(_) | Self::Content { .. } => {
                "give a kernel: floe guest install --kernel FILE --modules /lib/modules/VERSION"
            }
            Self::Program { program, .. } => match *program {
                "depmod" => "apt-get install kmod",
                "dpkg-deb" => "apt-get install dpkg",
                _ => "apt-get install apt",
            },
            Self::Failed { program, .. } if *program != "apt-get" => {
                "is there room on the file system? df -h shows it"
            }
            Self::Failed { .. } | Self::NoPackage(_) => "apt-get update",
            Self::Directory { .. } => "check the directory's permissions and that there is room",
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Its file.
    pub kernel: PathBuf,
    /// Its modules, with `modules.dep`.
    pub modules: PathBuf,
    /// Package and version, as `linux-image-6.1.0-57-cloud-amd64 6.1.192-3`.
    pub origin: String,
}

impl Distribution {
    /// Which one a system is, by the text of its `/etc/os-release`. Source: os-release(5).
    ///
    /// # Errors
    ///
    /// [`FetchError::Distribution`].
    pub fn parse(os_release: &str) -> Result<Self, FetchError> {
        let field = |name: &str| {
            os_release
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .map(|value| value.trim_matches(['"', '\'']))
        };
        let id = field("ID").unwrap_or("an unknown system");
        let like = field("ID_LIKE").unwrap_or_default().split_whitespace();
        std::iter::once(id)
            .chain(like)
            .find_map(|name| match name {
                "debian" => Some(Self::Debian),
                "ubuntu" => Some(Self::Ubuntu),
                _ => None,
            })
            .ok_or_else(|| FetchError::Distribution(id.to_owned()))
    }

    /// The package that always depends on the newest kernel for virtual machines.
    fn meta_package(self) -> &'static str {
        match self {
            Self::Debian => "linux-image-cloud-amd64",
            Self::Ubuntu => "linux-image-virtual",
        }
    }

    /// The packages of a kernel of that version.
    fn packages(self, version: &str) -> Vec<String> {
        let image = format!("linux-image-{version}");
        match self {
            Self::Debian => vec![image],
            Self::Ubuntu => vec![image, format!("linux-modules-{version}")],
        }
    }
}

/// Fetches this system's kernel for virtual machines into `dir`, which exists and is empty.
///
/// # Errors
///
/// [`FetchError`].
pub fn fetch(dir: &Path) -> Result<Fetched, FetchError> {
    let path = Path::new("/etc/os-release");
    let text = fs::read_to_string(path).map_err(|source| directory(path, source))?;
    let distribution = Distribution::parse(&text)?;
    let meta = distribution.meta_package();
    let depends = run(dir, "apt-cache", &["depends", meta])?;
    let image = image_package(&depends).ok_or(FetchError::NoPackage(meta))?;
    let version = image.trim_start_matches("linux-image-").to_owned();
    let policy = run(dir, "apt-cache", &["policy", &image])?;
    let candidate = candidate(&policy).ok_or(FetchError::NoPackage(meta))?;
    for package in distribution.packages(&version) {
        download(dir, &package)?;
        let archive = archive(dir, &package)?;
        // Programs are given names in `dir`, which may itself have a name that is not UTF-8.
        run(dir, "dpkg-deb", &["-x", &archive, TREE])?;
        let archive = dir.join(archive);
        fs::remove_file(&archive).map_err(|source| directory(&archive, source))?;
    }
    let tree = dir.join(TREE);
    let missing = |what: String| FetchError::Content {
        package: image.clone(),
        what,
    };
    let kernel = tree.join(format!("boot/vmlinuz-{version}"));
    if !kernel.is_file() {
        return Err(missing(format!("/boot/vmlinuz-{version}")));
    }
    // depmod looks in lib, and where the package brings usr/lib, the link is another package's.
    let lib = tree.join("lib");
    if !lib.exists() {
        std::os::unix::fs::symlink("usr/lib", &lib).map_err(|source| directory(&lib, source))?;
    }
    let modules = lib.join("modules").join(&version);
    if !modules.is_dir() {
        return Err(missing(format!("/lib/modules/{version}")));
    }
    // Installing the package would have done that.
    run(dir, "depmod", &["-b", TREE, &version])?;
    Ok(Fetched {
        kernel,
        modules,
        origin: format!("{image} {candidate}"),
    })
}

fn download(dir: &Path, package: &str) -> Result<(), FetchError> {
    // As another user, apt could not write into the directory.
    let options = [
        "-qq",
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Acquire::Retries=2",
        "download",
        package,
    ];
    run(dir, "apt-get", &options).map(|_| ())
}

/// The name of the file that was downloaded: the version in it is encoded.
fn archive(dir: &Path, package: &str) -> Result<String, FetchError> {
    let begins = format!("{package}_");
    let entries = fs::read_dir(dir).map_err(|source| directory(dir, source))?;
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find(|name| name.starts_with(&begins))
        .ok_or_else(|| FetchError::Content {
            package: package.to_owned(),
            what: "archive that apt-get would have left".to_owned(),
        })
}

/// The first kernel in what `apt-cache depends` says.
fn image_package(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
}

/// The version in what `apt-cache policy` says.
fn candidate(policy: &str) -> Option<String> {
    policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))
        .filter(|version| *version != "(none)")
        .map(str::to_owned)
}

fn directory(path: &Path, source: io::Error) -> FetchError {
    FetchError::Directory {
        path: path.to_owned(),
        source,
    }
}

/// Runs a program in `dir` and returns what it prints.
fn run(dir: &Path, program: &'static str, args: &[&str]) -> Result<String, FetchError> {
    // Where administrators' programs are is not in everybody's PATH.
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|source| FetchError::Program { program, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(FetchError::Failed {
        program,
        said: last.unwrap_or("it did not say why").trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_known_by_itself_or_what_it_is_like() {
        let parse = |text: &str| Distribution::parse(text).ok();
        assert_eq!(parse("NAME=x\nID=debian\n"), Some(Distribution::Debian));
        assert_eq!(
            parse("ID=ubuntu\nID_LIKE=debian"),
            Some(Distribution::Ubuntu)
        );
        assert_eq!(
            parse("ID=linuxmint\nID_LIKE=\"ubuntu debian\""),
            Some(Distribution::Ubuntu)
        );
        let error = Distribution::parse("ID=\"fedora\"\n").unwrap_err();
        assert!(error.to_string().contains("fedora"), "{error}");
        assert!(error.hint().contains("--kernel"));
    }

    #[test]
    fn packages_are_found_in_what_apt_says() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(
            image_package(depends).as_deref(),
            Some("linux-image-6.1.0-57-cloud-amd64")
        );
        assert_eq!(image_package("x\n  Depends: grub\n"), None);
        let policy = "x:\n  Installed: (none)\n  Candidate: 6.1.192-3\n  Version table:\n";
        assert_eq!(candidate(policy).as_deref(), Some("6.1.192-3"));
        assert_eq!(candidate("  Candidate: (none)\n"), None);
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let error = run(Path::new("/"), "depmod", &["--no-such-option"]);
        match error {
            Err(FetchError::Failed { program, said }) => {
                assert_eq!(program, "depmod");
                assert!(!said.is_empty());
            }
            Err(FetchError::Program { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
