//! Which of a kernel's modules a guest needs, and in which order they are loaded.
//!
//! Pure: works on the texts of `modules.dep` and `modules.builtin`. Sources: modules.dep(5), and the
//! kernel's `Documentation/kbuild/kbuild.rst` for `modules.builtin`.
//!
//! Invariant: each module of a list of [`Modules::resolve`] comes after all that it needs, and only once.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

/// A driver that a guest uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The module's name, with `_` for `-`.
    pub name: &'static str,
    /// The kernel's configuration option.
    pub option: &'static str,
    /// Whether there is no machine without it.
    pub required: bool,
}

/// What a guest uses: the transport, file systems, sockets, random numbers. Without the last, random
/// numbers come from the daemon when the machine starts, and from the processor.
pub const DRIVERS: [Driver; 4] = [
    Driver {
        name: "virtio_mmio",
        option: "CONFIG_VIRTIO_MMIO",
        required: true,
    },
    Driver {
        name: "virtiofs",
        option: "CONFIG_VIRTIO_FS",
        required: true,
    },
    Driver {
        name: "vmw_vsock_virtio_transport",
        option: "CONFIG_VIRTIO_VSOCKETS",
        required: true,
    },
    Driver {
        name: "virtio_rng",
        option: "CONFIG_HW_RANDOM_VIRTIO",
        required: false,
    },
];

/// Why the modules of a kernel do not do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModulesError {
    /// A line of `modules.dep` has no colon.
    #[error("line {0} of modules.dep is no line of such a file")]
    Line(usize),
    /// The kernel lacks a driver.
    #[error("the kernel has no {} ({}), neither as a module nor built in", .0.name, .0.option)]
    Missing(Driver),
    /// Modules need each other in a circle.
    #[error("the module '{0}' needs itself")]
    Circle(String),
}

impl ModulesError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Line(_) | Self::Circle(_) => "depmod -b DIR VERSION makes the file anew",
            Self::Missing(_) => {
                "docs/guest.md lists what a kernel needs; the distribution's has it: floe guest install"
            }
        }
    }
}

/// The parsed `modules.dep` and `modules.builtin` of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules {
    /// What each module's file needs, by its path.
    needs: BTreeMap<String, Vec<String>>,
    /// Path by name.
    paths: BTreeMap<String, String>,
    /// Names of what is in the kernel itself.
    builtin: BTreeSet<String>,
}

impl Modules {
    /// Parses both files.
    ///
    /// # Errors
    ///
    /// [`ModulesError::Line`].
    pub fn parse(dep: &str, builtin: &str) -> Result<Self, ModulesError> {
        let mut modules = Self {
            builtin: builtin.lines().map(name_of).collect(),
            ..Self::default()
        };
        for (index, line) in dep.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (path, needs) = line.split_once(':').ok_or(ModulesError::Line(index + 1))?;
            modules.paths.insert(name_of(path), path.to_owned());
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            modules.needs.insert(path.to_owned(), needs);
        }
        Ok(modules)
    }

    /// The files to load for these drivers, relative to the modules' directory, in order.
    ///
    /// # Errors
    ///
    /// [`ModulesError::Missing`] and [`ModulesError::Circle`].
    pub fn resolve(&self, drivers: &[Driver]) -> Result<Vec<String>, ModulesError> {
        let mut order = Vec::new();
        let mut state = BTreeMap::new();
        for driver in drivers {
            if self.builtin.contains(driver.name) {
                continue;
            }
            match self.paths.get(driver.name) {
                Some(path) => self.visit(path, &mut state, &mut order)?,
                None if driver.required => return Err(ModulesError::Missing(*driver)),
                None => {}
            }
        }
        Ok(order)
    }

    /// Puts what a file needs before it. `state` says of files seen whether they are in `order`. Not
    /// recursive: the depth is the file's.
    fn visit<'a>(
        &'a self,
        path: &'a str,
        state: &mut BTreeMap<&'a str, bool>,
        order: &mut Vec<String>,
    ) -> Result<(), ModulesError> {
        let mut stack = vec![(path, 0)];
        while let Some((path, next)) = stack.pop() {
            if next == 0 {
                match state.insert(path, false) {
                    None => {}
                    Some(true) => {
                        state.insert(path, true);
                        continue;
                    }
                    Some(false) => return Err(ModulesError::Circle(name_of(path))),
                }
            }
            // depmod writes the one to be loaded first last.
            let needs = self.needs.get(path).map_or(&[][..], Vec::as_slice);
            match needs.iter().rev().nth(next) {
                Some(need) => {
                    stack.push((path, next + 1));
                    stack.push((need, 0));
                }
                None => {
                    state.insert(path, true);
                    order.push(path.to_owned());
                }
            }
        }
        Ok(())
    }
}

/// A module's name: that of its file up to the first dot, with `_` for `-`.
fn name_of(path: &str) -> String {
    let file = path.trim().rsplit('/').next().unwrap_or_default();
    let name = file.split('.').next().unwrap_or_default();
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As depmod writes it for the cloud kernel of Debian 12, shortened.
    const DEP: &str = "\
kernel/fs/fuse/fuse.ko:
kernel/fs/fuse/virtiofs.ko: kernel/fs/fuse/fuse.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio_mmio.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/net/vmw_vsock/vsock.ko:
kernel/net/vmw_vsock/vmw_vsock_virtio_transport_common.ko: kernel/net/vmw_vsock/vsock.ko
kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko: kernel/net/vmw_vsock/vmw_vsock_virtio_transport_common.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko kernel/net/vmw_vsock/vsock.ko
";

    fn names(paths: &[String]) -> Vec<String> {
        paths.iter().map(|path| name_of(path)).collect()
    }

    #[test]
    fn every_module_comes_after_what_it_needs() {
        let modules = Modules::parse(DEP, "").unwrap();
        let order = modules.resolve(&DRIVERS).unwrap();
        assert_eq!(
            names(&order),
            [
                "virtio",
                "virtio_ring",
                "virtio_mmio",
                "fuse",
                "virtiofs",
                "vsock",
                "vmw_vsock_virtio_transport_common",
                "vmw_vsock_virtio_transport",
                "virtio_rng"
            ]
        );
    }

    #[test]
    fn what_is_built_in_is_not_loaded() {
        let builtin = "kernel/drivers/virtio/virtio_mmio.ko\nkernel/fs/fuse/virtiofs.ko\n\
                       kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko\n";
        let modules = Modules::parse("", builtin).unwrap();
        assert_eq!(modules.resolve(&DRIVERS), Ok(Vec::new()));
    }

    #[test]
    fn a_missing_driver_is_named_with_its_option_unless_it_is_optional() {
        let without_rng: String = DEP
            .lines()
            .filter(|line| !line.contains("virtio-rng"))
            .map(|line| format!("{line}\n"))
            .collect();
        let modules = Modules::parse(&without_rng, "").unwrap();
        assert_eq!(modules.resolve(&DRIVERS).unwrap().len(), 8);
        let modules = Modules::parse("kernel/fs/fuse/fuse.ko:\n", "").unwrap();
        let error = modules.resolve(&DRIVERS).unwrap_err();
        assert_eq!(error, ModulesError::Missing(DRIVERS[0]));
        assert!(error.to_string().contains("CONFIG_VIRTIO_MMIO"), "{error}");
    }

    #[test]
    fn a_circle_and_a_line_without_a_colon_are_errors() {
        let text = "a/virtio_mmio.ko: b.ko\nb.ko: a/virtio_mmio.ko\n";
        let modules = Modules::parse(text, "").unwrap();
        assert_eq!(
            modules.resolve(&DRIVERS),
            Err(ModulesError::Circle("virtio_mmio".to_owned()))
        );
        assert_eq!(
            Modules::parse("a.ko:\nnonsense\n", ""),
            Err(ModulesError::Line(2))
        );
    }

    #[test]
    fn compressed_modules_have_the_same_names() {
        let text = "kernel/drivers/virtio/virtio_mmio.ko.xz:\n";
        let modules = Modules::parse(text, "").unwrap();
        let order = modules.resolve(&DRIVERS[..1]);
        assert_eq!(
            order,
            Ok(vec!["kernel/drivers/virtio/virtio_mmio.ko.xz".to_owned()])
        );
    }
}
