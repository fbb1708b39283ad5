//! Listing directories.

use super::Server;
use crate::dispatch::Errno;
use crate::dispatch::wire::codec::{DirentPlus, Header, Listing, Reply};

impl Server {
    pub(super) fn readdir(
        &self,
        header: &Header,
        cookie: u64,
        (size, plus): (u32, bool),
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let operation = if plus { "readdirplus" } else { "readdir" };
        let ttl = self.options.caching.ttl();
        let mut listing = Listing::new(reply.body_mut(), size, plus);
        // References that the guest has no room for.
        let mut unheld = Vec::new();
        let listed = self.attempt(operation, ino, |fs| {
            fs.readdir(ino, cookie, plus, &mut |entry| {
                let is_dots = matches!(entry.name, b"." | b"..");
                let attr = entry.attr.filter(|_| !is_dots);
                let Some(attr) = attr else {
                    return listing.add(&entry, None);
                };
                if !self.nodes.take(entry.ino) {
                    // The guest gets the name, and `ENOMEM` when it looks it up.
                    let fits = listing.add(&entry, None);
                    if fits {
                        unheld.push(entry.ino);
                    }
                    return fits;
                }
                let more = DirentPlus {
                    attr: &attr,
                    generation: fs.generation(entry.ino),
                    ttl,
                };
                let fits = listing.add(&entry, Some(more));
                if !fits {
                    self.nodes.give_back(entry.ino, 1);
                }
                fits
            })
        });
        for ino in unheld {
            self.returned("forget", ino, |fs| fs.forget(ino, 1));
        }
        listed
    }
}
