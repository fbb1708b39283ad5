//! Loading the kernel modules of the initramfs.
//!
//! `/modules/load` names files in `/modules`, one a line, in the order in which they are to be loaded.
//! Whoever wrote the initramfs has seen to it that each comes after those it needs.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::io::Errno;
use thiserror::Error;

const DIR: &str = "/modules";
const LIST: &str = "/modules/load";

/// The kernel is to decompress the file. Source: the kernel's `include/uapi/linux/module.h`.
const MODULE_INIT_COMPRESSED_FILE: i32 = 4;

/// What the names of compressed modules end with.
const COMPRESSED: [&str; 3] = ["gz", "xz", "zst"];

/// Why modules were not loaded.
#[derive(Debug, Error)]
pub enum ModulesError {
    #[error("cannot read {LIST}: {0}")]
    List(io::Error),
    #[error("cannot open the kernel module {name}: {error}")]
    Open { name: String, error: io::Error },
    #[error("cannot load the kernel module {name}: {}", explain(.name, *.error))]
    Load { name: String, error: Errno },
}

fn explain(name: &str, error: Errno) -> String {
    match error {
        Errno::NOEXEC => "it is for another kernel, or no module".to_owned(),
        Errno::OPNOTSUPP if is_compressed(name) => {
            "this kernel cannot decompress modules (CONFIG_MODULE_DECOMPRESS)".to_owned()
        }
        Errno::NOENT => "it needs something that this kernel does not have".to_owned(),
        _ => io::Error::from(error).to_string(),
    }
}

fn is_compressed(name: &str) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| COMPRESSED.iter().any(|known| ending == *known))
}

/// Loads all of them, and gives their memory back.
pub fn load() -> Result<(), ModulesError> {
    let list = match fs::read_to_string(LIST) {
        Ok(list) => list,
        // A kernel that has everything in it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ModulesError::List(error)),
    };
    for name in list.lines().filter(|name| !name.is_empty()) {
        load_one(name)?;
    }
    // The files are in memory as long as they have names.
    match fs::remove_dir_all(DIR) {
        Ok(()) => Ok(()),
        Err(error) => Err(ModulesError::List(error)),
    }
}

fn load_one(name: &str) -> Result<(), ModulesError> {
    let file = File::open(Path::new(DIR).join(name)).map_err(|error| ModulesError::Open {
        name: name.to_owned(),
        error,
    })?;
    let flags = if is_compressed(name) {
        MODULE_INIT_COMPRESSED_FILE
    } else {
        0
    };
    match rustix::system::finit_module(&file, c"", flags) {
        // It is in the kernel.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(ModulesError::Load {
            name: name.to_owned(),
            error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_modules_are_told_by_their_names() {
        assert!(is_compressed("fuse.ko.xz"));
        assert!(is_compressed("fuse.ko.zst"));
        assert!(!is_compressed("fuse.ko"));
        assert!(!is_compressed("xz"));
    }

    #[test]
    fn a_failure_says_what_is_wrong_with_the_module() {
        let made = |name: &str, error| {
            let name = name.to_owned();
            ModulesError::Load { name, error }.to_string()
        };
        assert!(made("a.ko", Errno::NOEXEC).contains("another kernel"));
        assert!(made("a.ko.xz", Errno::OPNOTSUPP).contains("decompress"));
    }
}
