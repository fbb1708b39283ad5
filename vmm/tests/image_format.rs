//! Images that earlier versions of Floe wrote are read as what they were (docs/format.md, section "Images").
//!
//! `tests/fixtures/image-1` was taken of the payload guest with 32 MiB (`dirty 16 0`), and `image-1-over` over it, 16
//! pages later. Of their memory files the
//! repository has the pages that are not zeros, each after its number (64 bits, little-endian): `memory.pages`. A format that changes gets
//! fixtures of its own beside these: `FLOE_WRITE_FIXTURE=NAME` writes a pair instead of reading one.

#[expect(dead_code, reason = "there are no file systems here")]
#[path = "../payload/host.rs"]
mod payload_host;
#[path = "../payload/snapshots.rs"]
mod snapshots;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use floe_vmm::snapshot::image::Image;
use floe_vmm::snapshot::pages::Run;
use floe_vmm::snapshot::{RestoreImageError, Snapshotter};
use payload_host::kvm;
use snapshots::{empty, running, step, take, wait_for_step};

const MIB: u32 = 32;
const PAGE: usize = 4096;
const PAGES: usize = (MIB as usize) << 8;
/// What the memory of the two hashes to.
const FIRST: &str = "f4cd7c367163956655de9f33c74eeb0d92bd9a548e4837151863e42a301fa232";
const SECOND: &str = "bd18ed77062bbefc414e3a965b4cdc916e0c3d292507283cf01d4c15ea85a075";
/// What is at the start of every image's file: its name and its version.
const HEAD: &[u8] = b"floe-img\x01\0\0\0";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Copies a fixture, whose memory files get their length again.
fn copied(name: &str, to: &Path) -> PathBuf {
    let copy = to.join(name);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        let bytes = fs::read(entry.path()).unwrap();
        let name = entry.file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".pages") else {
            fs::write(copy.join(name), bytes).unwrap();
            continue;
        };
        let file = File::create(copy.join(name)).unwrap();
        file.set_len(u64::from(MIB) << 20).unwrap();
        for record in bytes.chunks(8 + PAGE) {
            let (number, page) = record.split_at(8);
            let number = u64::from_le_bytes(number.try_into().unwrap());
            file.write_all_at(page, number * PAGE as u64).unwrap();
        }
    }
    copy
}

/// The hash of all of its memory.
fn memory_hash(image: &Image) -> String {
    let mut bytes = vec![1; PAGES * PAGE];
    let all = Run {
        start: 0,
        len: PAGES,
    };
    image.read(all, &mut bytes).unwrap();
    blake3::hash(&bytes).to_hex().to_string()
}

/// Takes a pair of images of a guest and puts them where fixtures are.
fn write(name: &str) {
    let host = kvm().expect("fixtures are made where there is KVM");
    let dir = tempfile::tempdir().unwrap();
    let machine = running(&host, MIB, "dirty 16 0");
    let mut snapshotter = Snapshotter::new(&machine);
    let mut held = || Ok(());
    let (mut first, _) = take(&mut snapshotter, (dir.path(), name), MIB, None, &mut held);
    first.seal(None).unwrap();
    wait_for_step(&machine, step(&machine) + 16);
    let over = format!("{name}-over");
    let place = (dir.path(), over.as_str());
    let (mut second, _) = take(&mut snapshotter, place, MIB, Some(&first), &mut held);
    second.seal(Some(&first)).unwrap();
    for image in [&first, &second] {
        let to = fixtures().join(&image.manifest().id);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(image.dir()).unwrap() {
            let entry = entry.unwrap();
            let bytes = fs::read(entry.path()).unwrap();
            let name = entry.file_name().into_string().unwrap();
            if bytes.len() < PAGES * PAGE {
                fs::write(to.join(name), bytes).unwrap();
                continue;
            }
            let mut file = File::create(to.join(name + ".pages")).unwrap();
            let pages = (0u64..).zip(bytes.chunks(PAGE));
            for (number, page) in pages.filter(|(_, page)| page.iter().any(|&byte| byte != 0)) {
                file.write_all(&number.to_le_bytes()).unwrap();
                file.write_all(page).unwrap();
            }
        }
        println!("{}: {}", image.manifest().id, memory_hash(image));
    }
}

#[test]
fn images_of_format_1_are_what_they_were_and_their_machines_go_on() {
    if let Ok(name) = std::env::var("FLOE_WRITE_FIXTURE") {
        return write(&name);
    }
    let dir = tempfile::tempdir().unwrap();
    let expected = [
        ("image-1", None, 1, FIRST),
        ("image-1-over", Some("image-1"), 2, SECOND),
    ];
    for (name, parent, files, hash) in expected {
        let copy = copied(name, dir.path());
        assert!(fs::read(copy.join("image")).unwrap().starts_with(HEAD));
        let image = Image::open(&copy).unwrap();
        assert!(image.is_sealed());
        image.verify().unwrap();
        let manifest = image.manifest();
        assert_eq!(manifest.id, name);
        assert_eq!(manifest.parent.as_deref(), parent);
        assert_eq!((manifest.ram_mib, manifest.vcpus), (MIB, 1));
        assert_eq!(manifest.files.len(), files);
        assert_eq!(memory_hash(&image), hash);
        assert_eq!(image.state().unwrap().vcpus.len(), 1);

        let Some(host) = kvm() else { continue };
        let mut machine = empty(&host, MIB);
        match machine.restore(&image, &host) {
            Ok(()) => {
                let at = step(&machine);
                machine.resume().unwrap();
                wait_for_step(&machine, at + 100);
            }
            // It was taken on one processor, and says so on others.
            Err(RestoreImageError::Mismatch(differs)) => {
                eprintln!("not started here: {differs}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
