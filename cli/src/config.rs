//! The configuration file: TOML, read once when a daemon starts.
//!
//! Which one: the one named by `--config`, else by `FLOE_CONFIG`, else `config.toml` in the store if
//! it is there. What is not set has its default; without a file everything has. A key that is not
//! known is an error: a misspelt limit must not be no limit. `docs/config.md` describes every key.

mod api;
pub mod values;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

pub use api::ApiConfig;

use crate::store_dir::StoreDir;
use crate::wire::sandbox::Limits;

/// The variable that names the file when `--config` does not.
pub const CONFIG_VARIABLE: &str = "FLOE_CONFIG";
/// Its name in a store.
const CONFIG_FILE: &str = "config.toml";
/// Largest file that is read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The HTTP API.
    pub api: ApiConfig,
    /// Sandboxes.
    pub sandbox: SandboxSettings,
    /// The daemon's log.
    pub log: LogSettings,
}

/// Whose network a sandbox may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// None: nothing but a loopback device of its own.
    #[default]
    None,
    /// The host's, if the request for the sandbox asks for it.
    Host,
}

/// What holds for sandboxes unless the request for one says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSettings {
    /// Whose network one may have.
    pub network: Network,
    /// Thousandths of a processor that one may use.
    #[serde(deserialize_with = "values::cpus_or_none")]
    pub cpus: Option<u64>,
    /// Bytes of memory that one may use.
    #[serde(deserialize_with = "values::bytes_or_none")]
    pub memory: Option<u64>,
    /// Processes and threads that one may have at once.
    #[serde(deserialize_with = "values::count_or_none")]
    pub pids: Option<u64>,
    /// Bytes that its workspace may hold beyond what it starts with.
    #[serde(deserialize_with = "values::bytes_or_none")]
    pub disk: Option<u64>,
    /// The time, in seconds, of one that is made over HTTP by a request that names none.
    #[serde(deserialize_with = "values::seconds")]
    pub timeout: u64,
    /// Most sandboxes at once, whatever state they are in.
    #[serde(deserialize_with = "values::at_least_one")]
    pub max: usize,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            network: Network::None,
            cpus: Some(2000),
            memory: Some(2 << 30),
            pids: Some(1024),
            disk: Some(10 << 30),
            timeout: 300,
            max: 500,
        }
    }
}

impl SandboxSettings {
    /// The limits of a sandbox: those that were asked for, the others as configured.
    #[must_use]
    pub fn limits(&self, asked: &Limits) -> Limits {
        Limits {
            cpu_millis: asked.cpu_millis.or(self.cpus),
            memory_bytes: asked.memory_bytes.or(self.memory),
            pids: asked.pids.or(self.pids),
            disk_bytes: asked.disk_bytes.or(self.disk),
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// The daemon's log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// How its lines look.
    pub format: LogFormat,
    /// What is logged, unless the variable `FLOE_LOG` says so: a level, or levels by module.
    #[serde(deserialize_with = "values::log_filter")]
    pub filter: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            format: LogFormat::Human,
            filter: "info".to_owned(),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file that was named is not there.
    #[error("there is no configuration file '{}'", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the configuration file '{}'", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file says something that is not understood.
    #[error("the configuration file '{}' is wrong at line {line}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        #[source]
        source: Wrong,
    },
}

/// What is wrong with a configuration.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Wrong(String);

/// The file that a command line or the environment names.
#[must_use]
pub fn named(flag: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os(CONFIG_VARIABLE).filter(|value| !value.is_empty());
    flag.map(Path::to_owned)
        .or_else(|| variable().map(PathBuf::from))
}

impl Config {
    /// Reads the file that was named, which must be there, or else the store's own, if it is.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(named: Option<&Path>, store: &StoreDir) -> Result<Self, ConfigError> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => store.path().join(CONFIG_FILE),
        };
        match read(&path) {
            Ok(text) => Self::parse(&text).map_err(|(line, source)| ConfigError::Wrong {
                path,
                line,
                source,
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => match named {
                Some(_) => Err(ConfigError::NotFound { path }),
                None => Ok(Self::default()),
            },
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    /// Reads a text. What is wrong comes with its line, from 1.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(text: &str) -> Result<Self, (usize, Wrong)> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.unwrap_or_default().matches('\n').count() + 1;
            (line, Wrong(error.message().to_owned()))
        })
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > CONFIG_BYTES_MAX {
        let what = format!("it is larger than {CONFIG_BYTES_MAX} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
