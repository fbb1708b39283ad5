//! Builds a guest's initramfs: the agent as `/init`, the modules, and the list in which order to load
//! them (`/modules/load`). Nothing else is needed: everything more comes with the root.

use super::cpio::{Archive, CpioError};

/// Number of the console's device. Source: the kernel's `Documentation/admin-guide/devices.txt`.
const CONSOLE: (u32, u32) = (5, 1);

/// A module as it goes into an initramfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of its file, without directories.
    pub name: String,
    /// What is in it.
    pub contents: Vec<u8>,
}

/// The bytes of an initramfs with `agent` as its first process, which loads `modules` in their order.
///
/// # Errors
///
/// [`CpioError`]: the name of a module is odd.
pub fn build(agent: &[u8], modules: &[Module]) -> Result<Vec<u8>, CpioError> {
    let mut archive = Archive::default();
    archive.file("init", 0o755, agent.to_vec())?;
    // The kernel opens it for the first process before that runs.
    archive.character_device("dev/console", CONSOLE)?;
    let mut list = String::new();
    for module in modules {
        if module.name.contains(['\n', '/']) {
            return Err(CpioError::Name(module.name.clone()));
        }
        let name = format!("modules/{}", module.name);
        archive.file(&name, 0o644, module.contents.clone())?;
        list.push_str(&module.name);
        list.push('\n');
    }
    archive.file("modules/load", 0o644, list.into_bytes())?;
    Ok(archive.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str) -> Module {
        Module {
            name: name.to_owned(),
            contents: vec![1, 2, 3],
        }
    }

    #[test]
    fn the_list_has_the_modules_in_their_order() {
        let modules = [module("z.ko"), module("a.ko")];
        let bytes = build(b"agent", &modules).unwrap();
        let list = b"z.ko\na.ko\n";
        assert!(bytes.windows(list.len()).any(|window| window == list));
        assert_eq!(build(b"agent", &modules).unwrap(), bytes);
    }

    #[test]
    fn a_module_with_an_odd_name_is_refused() {
        for name in ["a\nb.ko", "../init", "", "load"] {
            assert!(build(b"agent", &[module(name)]).is_err(), "{name:?}");
        }
    }
}
