//! What is wrong with a configuration file.

use super::{ApiError, ErrorKind, shell_word};
use crate::config::ConfigError;

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        let word = |path: &std::path::Path| shell_word(&path.to_string_lossy());
        match &error {
            ConfigError::NotFound { .. } => Self::from_error(ErrorKind::NotFound, &error)
                .hint("name another with --config, or with FLOE_CONFIG"),
            ConfigError::Read { path, .. } => Self::from_error(ErrorKind::Failed, &error)
                .hint(format!("look at it with `ls -l {}`", word(path))),
            ConfigError::Wrong { path, line, .. } => Self::from_error(ErrorKind::Usage, &error)
                .hint(format!(
                    "read the line with `sed -n {line}p {}`; docs/config.md has every key",
                    word(path)
                )),
        }
    }
}
