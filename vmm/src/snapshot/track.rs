//! Which pages were written since when.
//!
//! Two accounts are kept by others: KVM logs what the guest writes, and the memory's bitmap has what this
//! process writes for it. Reading either clears it, so both are read here only, and what was read is kept
//! until the image is made that has it.
//!
//! Invariant: every page that differs from the base image is in `changed`, or in one of the two accounts.

use super::pages::Pages;
use super::ram::Ram;
use crate::machine::vm::{Vm, VmError};

/// Changes since a base image.
#[derive(Debug)]
pub(super) struct Track {
    /// The image that `changed` counts from; none: everything counts.
    base: Option<String>,
    changed: Pages,
    logging: bool,
}

impl Track {
    /// Of a machine that has no image yet, and that KVM keeps no account of.
    pub(super) fn from_nothing(ram: &Ram) -> Self {
        Self {
            base: None,
            changed: Pages::none(ram.pages()),
            logging: false,
        }
    }

    /// Of a machine that was just set to the image `base`, and that KVM has kept account of since.
    pub(super) fn from_image(ram: &Ram, base: &str) -> Self {
        Self {
            base: Some(base.to_owned()),
            changed: Pages::none(ram.pages()),
            logging: true,
        }
    }

    /// The image that changes are counted from.
    pub(super) fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Has KVM keep account from now on.
    pub(super) fn begin(&mut self, vm: &Vm) -> Result<(), VmError> {
        if !self.logging {
            vm.log_writes()?;
            self.logging = true;
        }
        Ok(())
    }

    /// Pages that were written since the last call.
    pub(super) fn take(&mut self, vm: &Vm, ram: &Ram) -> Result<Pages, VmError> {
        let mut taken = ram.take_own_writes();
        let log = vm.take_log().inspect_err(|_| self.changed.union(&taken))?;
        ram.add_log(&mut taken, &log);
        self.changed.union(&taken);
        Ok(taken)
    }

    /// Everything that was read since the base.
    pub(super) fn changed(&self) -> &Pages {
        &self.changed
    }

    /// Counts from here: everything that was read is in the image `id`.
    pub(super) fn rebase(&mut self, id: &str) {
        self.base = Some(id.to_owned());
        self.changed = Pages::none(self.changed.total());
    }

    /// The base is of no use any more: the next image has everything.
    pub(super) fn forget_base(&mut self) {
        self.base = None;
    }
}
