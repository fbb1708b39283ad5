//! Which file holds which pages of an image.
//!
//! An image does not copy what its parent has: it has one memory file of its own, and goes on using the
//! parent's for the rest. So that the last of a long chain starts like the first, the number of
//! [`Extent`]s (each is one mapping at a restore) and of files has a limit, whatever the depth: what
//! would go beyond is *absorbed*, the smallest pieces first, by copying their pages into the image's own
//! file when it is made. Pure.
//!
//! Invariants: extents are in order, do not overlap, and lie in RAM; a page in none is all zeros. A file's
//! pages are at the same place in the file as in RAM, so an extent of the own file may go over pages
//! that are zero: the file has a hole there.

use serde::{Deserialize, Serialize};

use crate::snapshot::pages::{Pages, Run};

/// Most extents of an image.
pub const EXTENTS_MAX: usize = 64;
/// Most memory files that an image uses, its own included.
pub const FILES_MAX: usize = 16;
/// The number of the image's own file.
pub const OWN: usize = 0;

/// Pages that one file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The first page.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// Which of the image's files.
    pub file: usize,
}

impl Extent {
    /// Its pages.
    #[must_use]
    pub fn run(self) -> Run {
        Run {
            start: self.start,
            len: self.len,
        }
    }
}

/// How an image's pages are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// In order. Files are numbered as the parent's, plus one: [`OWN`] is the image's own.
    pub extents: Vec<Extent>,
    /// Pages of the parent's that have to be copied into the own file, with the parent's number of the
    /// file that they are in.
    pub absorbed: Vec<Extent>,
}

/// Why extents are no layout.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There are too many.
    #[error("the image has {found} extents, more than {EXTENTS_MAX}")]
    TooMany {
        /// How many.
        found: usize,
    },
    /// One is empty, leaves RAM, overlaps the one before, or names a file that there is not.
    #[error("extent {number} of the image is none")]
    Impossible {
        /// Which.
        number: usize,
    },
}

/// Checks what an image says of itself: `pages` of RAM, `files` in number.
///
/// # Errors
/// [`LayoutError`].
pub fn check(extents: &[Extent], pages: usize, files: usize) -> Result<(), LayoutError> {
    if extents.len() > EXTENTS_MAX {
        return Err(LayoutError::TooMany {
            found: extents.len(),
        });
    }
    let mut at = 0;
    for (number, extent) in extents.iter().enumerate() {
        let end = extent.start.checked_add(extent.len);
        let fits = extent.start >= at && end.is_some_and(|end| end <= pages);
        if !fits || extent.len == 0 || extent.file >= files {
            return Err(LayoutError::Impossible { number });
        }
        at = extent.start + extent.len;
    }
    Ok(())
}

/// Lays out an image of `own` pages (written since the parent, zero ones included) over a parent, if it
/// has one.
#[must_use]
pub fn compose(own: &Pages, parent: &[Extent]) -> Layout {
    compose_within(own, parent, EXTENTS_MAX, FILES_MAX)
}

fn compose_within(own: &Pages, parent: &[Extent], extents: usize, files: usize) -> Layout {
    let mut pieces = visible(own, parent);
    let mut own = own.clone();
    let mut absorbed = Vec::new();
    let mut absorb =
        |pieces: &mut Vec<Extent>, own: &mut Pages, which: &dyn Fn(&Extent) -> bool| {
            pieces.retain(|piece| {
                let goes = which(piece);
                if goes {
                    own.insert_run(piece.run());
                    absorbed.push(*piece);
                }
                !goes
            });
        };
    // Files first: a file that goes takes all of its extents with it.
    for file in smallest_files(&pieces, files.saturating_sub(1)) {
        absorb(&mut pieces, &mut own, &|piece| piece.file == file);
    }
    loop {
        let merged = merge(&own, &pieces);
        let excess = merged.len().saturating_sub(extents);
        if excess == 0 || pieces.is_empty() {
            absorbed.sort_by_key(|extent: &Extent| extent.start);
            return Layout {
                extents: merged,
                absorbed,
            };
        }
        // One that goes takes two extents with it, its own and a neighbour's, or fewer.
        let size = |piece: &Extent| (piece.len, piece.start);
        let mut sizes: Vec<(usize, usize)> = pieces.iter().map(size).collect();
        sizes.sort_unstable();
        let last = sizes[(excess.div_ceil(2) - 1).min(sizes.len() - 1)];
        absorb(&mut pieces, &mut own, &|piece| size(piece) <= last);
    }
}

/// What is seen of the parent's extents beside the own pages.
fn visible(own: &Pages, parent: &[Extent]) -> Vec<Extent> {
    let mut pieces = Vec::new();
    let mut covers = own.runs().peekable();
    for extent in parent {
        let (mut at, end) = (extent.start, extent.start + extent.len);
        while let Some(cover) = covers.peek().copied().filter(|cover| cover.start < end) {
            if cover.start > at {
                pieces.push(Extent {
                    start: at,
                    len: cover.start - at,
                    file: extent.file,
                });
            }
            at = at.max(cover.end());
            if cover.end() > end {
                break;
            }
            covers.next();
        }
        if at < end {
            pieces.push(Extent {
                start: at,
                len: end - at,
                file: extent.file,
            });
        }
    }
    pieces
}

/// The files that hold the fewest visible pages, all but `keep`.
fn smallest_files(pieces: &[Extent], keep: usize) -> Vec<usize> {
    let mut held = std::collections::BTreeMap::new();
    for piece in pieces {
        *held.entry(piece.file).or_insert(0) += piece.len;
    }
    let mut by_size: Vec<(usize, usize)> =
        held.into_iter().map(|(file, len)| (len, file)).collect();
    by_size.sort_unstable();
    let goes = by_size.len().saturating_sub(keep);
    by_size.iter().take(goes).map(|(_, file)| *file).collect()
}

/// Own pages and the parent's pieces as extents. Own runs with nothing but zeros between them are one:
/// the own file has a hole there.
fn merge(own: &Pages, pieces: &[Extent]) -> Vec<Extent> {
    let owned = own.runs().map(|run| Extent {
        start: run.start,
        len: run.len,
        file: OWN,
    });
    let parents = pieces.iter().map(|piece| Extent {
        file: piece.file + 1,
        ..*piece
    });
    let mut all: Vec<Extent> = owned.chain(parents).collect();
    all.sort_by_key(|extent| extent.start);
    let mut merged: Vec<Extent> = Vec::with_capacity(all.len());
    for extent in all {
        match merged
            .last_mut()
            .filter(|last| last.file == OWN && extent.file == OWN)
        {
            Some(last) => last.len = extent.start + extent.len - last.start,
            None => merged.push(extent),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Who has each page: `None` for zeros, else the number of the image that wrote it.
    type Model = Vec<Option<usize>>;

    /// The files of an image as a test keeps them: each has its writer and what it holds.
    struct Image {
        extents: Vec<Extent>,
        // By number: contents of a page are the number of the image that wrote it.
        files: Vec<Model>,
    }

    fn seen(image: &Image, pages: usize) -> Model {
        let mut model = vec![None; pages];
        for extent in &image.extents {
            let pages = extent.start..extent.start + extent.len;
            model[pages.clone()].clone_from_slice(&image.files[extent.file][pages]);
        }
        model
    }

    fn write(
        number: usize,
        own: &Pages,
        zero: &Pages,
        parent: &Image,
        limits: (usize, usize),
    ) -> Image {
        let layout = compose_within(own, &parent.extents, limits.0, limits.1);
        let mut file = vec![None; own.total()];
        for page in own.runs().flat_map(|run| run.start..run.end()) {
            file[page] = (!zero.contains(page)).then_some(number);
        }
        for extent in &layout.absorbed {
            let pages = extent.start..extent.start + extent.len;
            file[pages.clone()].clone_from_slice(&parent.files[extent.file][pages]);
        }
        let mut files = vec![file];
        files.extend(parent.files.iter().cloned());
        // As the writer of images does: files that nothing is seen of are left out.
        let mut image = Image {
            extents: layout.extents,
            files,
        };
        renumber(&mut image);
        image
    }

    fn renumber(image: &mut Image) {
        let used: Vec<usize> = (0..image.files.len())
            .filter(|file| *file == OWN || image.extents.iter().any(|extent| extent.file == *file))
            .collect();
        for extent in &mut image.extents {
            extent.file = used.iter().position(|file| *file == extent.file).unwrap();
        }
        image.files = used.iter().map(|file| image.files[*file].clone()).collect();
    }

    proptest! {
        #[test]
        fn a_chain_shows_what_was_written_last_within_its_limits(
            pages in 1usize..400,
            chain in prop::collection::vec(
                (prop::collection::vec((0usize..400, 1usize..20), 0..40), any::<bool>()), 1..40),
            limits in (3usize..40, 2usize..8),
        ) {
            let mut image = Image { extents: Vec::new(), files: Vec::new() };
            let mut model: Model = vec![None; pages];
            for (number, (runs, zeros)) in chain.into_iter().enumerate() {
                let (mut own, mut zero) = (Pages::none(pages), Pages::none(pages));
                for (at, (start, len)) in runs.into_iter().enumerate() {
                    let run = Run { start, len };
                    own.insert_run(run);
                    for page in (start..start + len).filter(|page| *page < pages) {
                        let is_zero = zeros && at % 3 == 0;
                        if is_zero { zero.insert(page) } else { zero.remove(page) }
                        model[page] = (!is_zero).then_some(number);
                    }
                }
                image = write(number, &own, &zero, &image, limits);
                prop_assert_eq!(check(&image.extents, pages, image.files.len()), Ok(()));
                prop_assert_eq!(&seen(&image, pages), &model);
                prop_assert!(image.extents.len() <= limits.0, "{} extents", image.extents.len());
                prop_assert!(image.files.len() <= limits.1, "{} files", image.files.len());
            }
        }
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        let extent = |start, len, file| Extent { start, len, file };
        assert_eq!(check(&[], 10, 1), Ok(()));
        assert_eq!(check(&[extent(0, 4, 0), extent(4, 6, 1)], 10, 2), Ok(()));
        for bad in [
            [extent(0, 4, 0), extent(3, 2, 0)],
            [extent(0, 4, 0), extent(4, 7, 0)],
            [extent(0, 4, 0), extent(4, 0, 0)],
            [extent(0, 4, 0), extent(4, 1, 1)],
            [extent(0, 4, 0), extent(4, usize::MAX, 0)],
        ] {
            assert_eq!(
                check(&bad, 10, 1),
                Err(LayoutError::Impossible { number: 1 }),
                "{bad:?}"
            );
        }
        let many = vec![extent(0, 1, 0); EXTENTS_MAX + 1];
        assert!(matches!(
            check(&many, 10, 1),
            Err(LayoutError::TooMany { .. })
        ));
    }

    #[test]
    fn a_first_image_is_one_extent_whatever_its_holes() {
        let mut own = Pages::none(1000);
        (0..1000).step_by(7).for_each(|page| own.insert(page));
        let layout = compose(&own, &[]);
        assert_eq!(
            layout.extents,
            [Extent {
                start: 0,
                len: 995,
                file: OWN
            }]
        );
        assert!(layout.absorbed.is_empty());
    }

    #[test]
    fn scattered_writes_absorb_no_more_than_they_must() {
        let parent = [Extent {
            start: 0,
            len: 100_000,
            file: 0,
        }];
        let mut own = Pages::none(100_000);
        // 40 pages, 81 extents: 9 pieces have to go, the shortest.
        (0..40).for_each(|n| own.insert(n * 2000 + n % 50));
        let layout = compose(&own, &parent);
        assert!(layout.extents.len() <= EXTENTS_MAX);
        let copied: usize = layout.absorbed.iter().map(|extent| extent.len).sum();
        assert!(copied < 12 * 2000, "{copied} pages");
    }
}
