//! What a guest's kernel has cached, which nobody here can reach.

use std::io;
use std::sync::atomic::Ordering;

use super::{Caching, Server};
use crate::dispatch::{Kept, KernelCache};
use crate::id::Ino;

/// Around a freeze and a rollback.
///
/// A guest has no write-back cache: what it wrote is here. Only pages that a program changed through a
/// shared mapping are not, until its kernel writes them; a snapshot of the file system alone has to have the
/// guest sync first, and one of the machine as well has those pages in the machine's memory.
impl KernelCache for Server {
    fn push_dirty(&self, _inodes: &[Ino]) -> io::Result<()> {
        Ok(())
    }

    fn paused(&self, act: &mut dyn FnMut()) {
        let _paused = self.serving.write();
        act();
        self.taken_back.store(true, Ordering::Release);
    }

    /// Waits until the guest's kernel believes nothing any more of what it was told.
    fn invalidate(&self, inodes: &[Ino], settled: &dyn Fn(Ino, Kept)) -> io::Result<()> {
        let Caching::Shared { ttl } = self.options.caching else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a running virtual machine believes that it alone changes the workspace",
            ));
        };
        std::thread::sleep(ttl);
        for &ino in inodes {
            settled(ino, Kept::Size);
            settled(ino, Kept::Pages);
        }
        Ok(())
    }
}
