//! A guest that writes memory all the time and notices when anything of it is not as it left it.

use crate::io::{self, read64 as read, write64 as write};

/// Where the count of steps is.
const COUNT: usize = 0x40_0000;
/// Which step wrote each page last, 8 bytes a page.
const TABLE: usize = 0x50_0000;
/// The pages.
const AREA: usize = 0x100_0000;
const PAGE: usize = 4096;

/// For ever: writes to one of `pages` pages, in an order without a pattern, then does nothing `rest` times.
/// The step's number is kept in a register and in memory; each page has the number of the step that wrote it last,
/// at its beginning and at a place that moves. What does not agree is told, and ends it.
pub fn dirty(pages: u64, rest: u64) {
    let pages = if pages == 0 { 4096 } else { pages };
    io::line(b"dirtying");
    let mut step = 0u64;
    loop {
        if read(COUNT) != step {
            io::value(b"broken step", step);
            return io::value(b"in memory", read(COUNT));
        }
        step += 1;
        let page = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % pages;
        let (at, entry) = (AREA + page as usize * PAGE, TABLE + page as usize * 8);
        let last = read(entry);
        if read(at) != last || read(place(at, last)) != last {
            io::value(b"broken page", page);
            return io::value(b"at step", step);
        }
        write(place(at, last), 0);
        write(place(at, step), step);
        write(at, step);
        write(entry, step);
        write(COUNT, step);
        for _ in 0..rest {
            core::hint::spin_loop();
        }
    }
}

fn place(page: usize, step: u64) -> usize {
    page + 8 + (step % 511) as usize * 8
}
