//! Images as a whole, against plain memory; no machine is needed for that.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::machine::memory::RamSize;
use crate::snapshot::compat::Compat;
use crate::snapshot::pages::{Pages, Run};

const MIB: u32 = 32;
const PAGES: usize = (MIB as usize) << 8;

fn ram() -> RamSize {
    RamSize::from_mib(MIB).unwrap()
}

fn taken(pages: Pages) -> Taken {
    Taken {
        pages,
        ram_mib: MIB,
        vcpus: 1,
        host: Compat {
            vendor: "AuthenticAMD".to_owned(),
            model: 1,
            kvm: "svm".to_owned(),
            kernel: "6.1".to_owned(),
            tsc_khz: 1_000_000,
            layout: 1,
        },
        created_at: 7,
        state: b"state".to_vec(),
    }
}

/// Some pages and what they are filled with.
const PARENTS: [(usize, u8); 3] = [(1, 1), (2, 2), (900, 3)];

/// A machine's memory, as far as it is not zeros.
#[derive(Clone, Default)]
struct Memory(std::collections::BTreeMap<usize, u8>);

impl Memory {
    fn page(&self, page: usize) -> Vec<u8> {
        vec![self.0.get(&page).copied().unwrap_or(0); 4096]
    }

    /// Makes an image of what was written since the parent.
    fn image(&self, dir: &Path, id: &str, written: &[usize], parent: Option<&Image>) -> Image {
        let writer = ImageWriter::new(dir, id, ram()).unwrap();
        let mut pages = Pages::none(PAGES);
        for &page in written {
            pages.insert(page);
            files::write_sparse(writer.memory(), page, &self.page(page)).unwrap();
        }
        writer
            .capture(taken(pages), parent, b"extra".to_vec())
            .unwrap()
    }

    fn assert_is(&self, image: &Image) {
        let mut found = vec![1; PAGES * 4096];
        let all = Run {
            start: 0,
            len: PAGES,
        };
        image.read(all, &mut found).unwrap();
        for (page, found) in found.chunks(4096).enumerate() {
            assert!(found == self.page(page), "page {page}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn images_of_a_chain_are_the_memory_that_they_were_made_of(
        chain in prop::collection::vec(
            (
                prop::collection::vec((0usize..PAGES, 0u8..4), 0..60),
                any::<bool>(),
                any::<bool>(),
            ),
            1..24,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::default();
        let mut last: Option<Image> = None;
        for (number, (writes, sealed, gone)) in chain.into_iter().enumerate() {
            let mut written: Vec<usize> = Vec::new();
            for (page, value) in writes {
                memory.0.insert(page, value);
                written.push(page);
            }
            let id = format!("image-{number}");
            let mut image = memory.image(dir.path(), &id, &written, last.as_ref());
            memory.assert_is(&image);
            if sealed {
                image.seal(last.as_ref()).unwrap();
                let again = Image::open(&dir.path().join(&id)).unwrap();
                prop_assert!(again.is_sealed());
                again.verify().unwrap();
                memory.assert_is(&again);
                prop_assert_eq!(again.extra(), b"extra");
            }
            if let Some(last) = last.replace(image).filter(|_| gone) {
                fs::remove_dir_all(last.dir()).unwrap();
            }
        }
        // Whatever went before it.
        let mut last = last.unwrap();
        last.seal(None).unwrap();
        let again = Image::open(last.dir()).unwrap();
        again.verify().unwrap();
        memory.assert_is(&again);
    }
}

#[test]
fn what_did_not_change_takes_no_room_twice_and_comes_back_with_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let mut memory = Memory::default();
    let all: Vec<usize> = (0..2000).collect();
    memory.0.extend(all.iter().map(|page| (*page, 7)));
    let mut first = memory.image(dir.path(), "first", &all, None);
    first.seal(None).unwrap();
    let full = first.own_bytes().unwrap();
    assert!(full >= 2000 << 12, "{full}");
    // The same again, as a guest does that writes what is there: nothing is kept of it.
    memory.0.insert(5, 8);
    let mut second = memory.image(dir.path(), "second", &all, Some(&first));
    second.seal(Some(&first)).unwrap();
    assert!(second.own_bytes().unwrap() < 64 << 10);
    assert_eq!(second.manifest().written_pages, 2000);
    assert_eq!(second.manifest().parent.as_deref(), Some("first"));
    let file = second.dir().join("memory.1");
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&file), inode(&first.dir().join("memory")));
    fs::remove_dir_all(first.dir()).unwrap();
    memory.assert_is(&Image::open(second.dir()).unwrap());
    assert!(second.own_bytes().unwrap() >= full, "it has it alone now");
}

#[test]
fn an_image_that_is_not_finished_is_removed_or_says_so() {
    let dir = tempfile::tempdir().unwrap();
    drop(ImageWriter::new(dir.path(), "image", ram()).unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let writer = ImageWriter::new(dir.path(), "image", ram()).unwrap();
    assert!(
        ImageWriter::new(dir.path(), "image", ram()).is_err(),
        "there is one"
    );
    assert!(dir.path().join("image/memory").exists(), "which stays");
    assert!(matches!(
        Image::open(&dir.path().join("image")),
        Err(OpenError::Absent { .. })
    ));
    let image = writer
        .capture(taken(Pages::none(PAGES)), None, Vec::new())
        .unwrap();
    assert!(matches!(image.verify(), Err(VerifyError::NotSealed)));
    let again = Image::open(image.dir()).unwrap();
    assert!(!again.is_sealed());
    let mode = fs::metadata(image.dir()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn what_somebody_can_still_write_to_is_no_image() {
    let dir = tempfile::tempdir().unwrap();
    let writer = ImageWriter::new(dir.path(), "image", ram()).unwrap();
    // As a monitor would that its guest has taken over.
    let kept = writer.memory().try_clone().unwrap();
    let error = writer
        .capture(taken(Pages::none(PAGES)), None, Vec::new())
        .unwrap_err();
    assert!(matches!(error, WriteError::StillWritten { .. }), "{error}");
    assert!(!dir.path().join("image").exists());
    drop(kept);
    let image = Memory::default().image(dir.path(), "image", &[], None);
    let refused = image.files()[0].write_all_at(b"x", 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
}

#[test]
fn what_could_not_be_opened_again_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let writer = ImageWriter::new(dir.path(), "image", ram()).unwrap();
    let extra = vec![0; usize::try_from(header::SECTION_MAX).unwrap() + 1];
    let error = writer
        .capture(taken(Pages::none(PAGES)), None, extra)
        .unwrap_err();
    assert!(
        matches!(error, WriteError::TooLarge { section: "extra part", len } if len == header::SECTION_MAX + 1),
        "{error}"
    );
    assert!(!dir.path().join("image").exists());
}

#[test]
fn an_image_is_sealed_although_its_parent_goes_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let mut memory = Memory::default();
    memory.0.insert(3, 1);
    let mut parent = memory.image(dir.path(), "parent", &[3], None);
    parent.seal(None).unwrap();
    memory.0.insert(4, 2);
    let mut image = memory.image(dir.path(), "image", &[4], Some(&parent));
    // Open still, and its files gone.
    fs::remove_dir_all(parent.dir()).unwrap();
    image.seal(Some(&parent)).unwrap();
    let again = Image::open(image.dir()).unwrap();
    again.verify().unwrap();
    memory.assert_is(&again);
}

#[test]
fn a_parent_of_another_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::default();
    let parent = memory.image(dir.path(), "parent", &[], None);
    let other = RamSize::from_mib(MIB * 2).unwrap();
    let writer = ImageWriter::new(dir.path(), "image", other).unwrap();
    let larger = Taken {
        ram_mib: MIB * 2,
        ..taken(Pages::none(PAGES * 2))
    };
    let error = writer
        .capture(larger, Some(&parent), Vec::new())
        .unwrap_err();
    assert!(
        matches!(
            error,
            WriteError::OtherRam {
                ram_mib: 64,
                parent_mib: 32
            }
        ),
        "{error}"
    );
    assert!(!dir.path().join("image").exists());
}

#[test]
fn a_manifest_that_leads_elsewhere_or_contradicts_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut image = Memory::default().image(dir.path(), "image", &[3], None);
    image.seal(None).unwrap();
    let good = image.manifest.clone();
    let bad: [fn(&mut Manifest); 5] = [
        |manifest| manifest.files[0].name = "../memory".to_owned(),
        |manifest| manifest.files.clear(),
        |manifest| manifest.extents[0].file = 1,
        |manifest| manifest.extents[0].len = usize::MAX,
        |manifest| manifest.vcpus = 99,
    ];
    for change in bad {
        image.manifest = good.clone();
        change(&mut image.manifest);
        image.write_as(SEALED).unwrap();
        let refused = Image::open(image.dir());
        assert!(
            matches!(refused, Err(OpenError::Impossible { .. })),
            "{refused:?}"
        );
    }
    image.manifest = good;
    image.write_as(SEALED).unwrap();
    Image::open(image.dir()).unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(image.dir().join("memory.sums"));
    file.unwrap().write_all_at(b"x", 0).unwrap();
    let damage = Image::open(image.dir()).unwrap().verify();
    // A page of zeros has no sum, so there is nothing to damage then.
    assert!(
        matches!(damage, Err(VerifyError::Damaged(Damage::Sums { .. }))),
        "{damage:?}"
    );
}

#[test]
fn an_image_whose_parent_is_deleted_in_the_middle_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut memory = Memory(PARENTS.into());
    let pages: Vec<usize> = memory.0.keys().copied().collect();
    let parent = memory.image(dir.path(), "parent", &pages, None);
    let mut writer = ImageWriter::new(dir.path(), "image", ram()).unwrap();
    writer.keep_files_of(&parent).unwrap();
    fs::remove_dir_all(parent.dir()).unwrap();
    memory.0.insert(20, 9);
    files::write_sparse(writer.memory(), 20, &memory.page(20)).unwrap();
    let mut own = Pages::none(PAGES);
    own.insert(20);
    let mut image = writer
        .capture(taken(own), Some(&parent), Vec::new())
        .unwrap();
    memory.assert_is(&image);
    image.seal(None).unwrap();
    let again = Image::open(&dir.path().join("image")).unwrap();
    again.verify().unwrap();
    memory.assert_is(&again);
    let kept = fs::read_dir(again.dir()).unwrap();
    let mut kept = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!kept.any(|name| name.starts_with("parent.")));

    // Gone before anything could be kept: it is said, and the image can have everything.
    let mut writer = ImageWriter::new(dir.path(), "other", ram()).unwrap();
    assert!(writer.keep_files_of(&parent).is_err());
}

#[test]
fn an_image_that_nobody_wants_any_more_is_given_up_while_it_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory(PARENTS.into());
    let pages: Vec<usize> = memory.0.keys().copied().collect();
    let parent = memory.image(dir.path(), "parent", &pages, None);
    let mut writer = ImageWriter::new(dir.path(), "image", ram()).unwrap();
    writer.keep_files_of(&parent).unwrap();
    let mut own = Pages::none(PAGES);
    own.insert(1);
    let given_up = writer.capture_while(taken(own), Some(&parent), Vec::new(), &|| false);
    assert!(matches!(given_up, Err(WriteError::Cancelled)));
    assert!(!dir.path().join("image").exists());
    memory.assert_is(&parent);
}
