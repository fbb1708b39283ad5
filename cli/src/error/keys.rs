//! What goes wrong with the keys of the API.

use super::{ApiError, ErrorKind, shell_word};
use crate::api::keys::KeysError;

impl From<KeysError> for ApiError {
    fn from(error: KeysError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match &error {
            KeysError::NotFound { .. } => {
                made(ErrorKind::NotFound).hint("see what there is with `floe serve key list`")
            }
            KeysError::NameTaken { .. } => made(ErrorKind::Conflict)
                .hint("pick another name; see them with `floe serve key list`"),
            KeysError::TooMany => {
                made(ErrorKind::Conflict).hint("take one back with `floe serve key revoke NAME`")
            }
            KeysError::Name { .. } => made(ErrorKind::Usage),
            KeysError::Exposed { path, .. } => {
                let path = shell_word(&path.to_string_lossy());
                made(ErrorKind::Failed).hint(format!(
                    "who could read it could use the API: close it with `chmod 600 {path}`, and \
                     revoke the keys"
                ))
            }
            KeysError::Access { .. } | KeysError::Damaged { .. } | KeysError::Random(_) => {
                made(ErrorKind::Failed)
            }
        }
    }
}
