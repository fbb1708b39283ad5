//! Snapshots of btrfs, on an image file that is mounted through a loop device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use super::{need_root, program, run};
use crate::bench::error::{BenchError, Step};
use crate::bench::fill::plain_tree;
use crate::bench::lab::Lab;
use crate::bench::report::{Group, Section};
use crate::bench::room::complain;
use crate::bench::stats::Times;

const IMAGE_BYTES: u64 = 2 << 30;
const NAME: &str = "btrfs subvolume snapshot";

/// An image that is mounted. Dropping it unmounts it, and the loop device goes with that.
struct Image {
    dir: PathBuf,
}

impl Image {
    fn mount(image: &Path, dir: &Path) -> Result<Self, BenchError> {
        let mut mount = Command::new(program("mount", "mount")?);
        mount.args(["-t", "btrfs", "-o", "loop"]).args([image, dir]);
        run(&mut mount)?;
        Ok(Self {
            dir: dir.to_owned(),
        })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let unmounted = match unmount(&self.dir, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => unmount(&self.dir, UnmountFlags::DETACH),
            other => other,
        };
        if let Err(error) = unmounted {
            complain(&format!("cannot unmount {}: {error}", self.dir.display()));
        }
    }
}

/// Takes snapshots of a subvolume with a tree of so many files; one file is changed before each.
pub(in crate::bench) fn measure(
    lab: &Lab<'_>,
    section: &mut Section,
    group: &mut Group,
    files: u64,
) -> Result<(), BenchError> {
    let times = lab.attempt(section, NAME, || {
        need_root()?;
        let btrfs = program("btrfs", "btrfs-progs")?;
        let room = lab.room("btrfs")?;
        let (image, dir) = (room.path().join("image"), room.dir("mnt"));
        let dir = dir.step("make a directory")?;
        let made = File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES));
        made.step("make an image")?;
        run(Command::new(program("mkfs.btrfs", "btrfs-progs")?)
            .arg("-q")
            .arg(&image))?;
        let mounted = Image::mount(&image, &dir)?;
        let tree = dir.join("tree");
        run(Command::new(&btrfs)
            .args(["subvolume", "create"])
            .arg(&tree))?;
        plain_tree(lab, &tree, files)?;
        let mut times = Times::default();
        for number in 0..lab.pick(50_u64, 5) {
            lab.check()?;
            std::fs::write(tree.join("changed"), number.to_string()).step("write a file")?;
            let mut command = Command::new(&btrfs);
            command.args(["subvolume", "snapshot"]);
            command.args([&tree, &dir.join(format!("snapshot-{number}"))]);
            times.time(|| run(&mut command))?;
        }
        drop(mounted);
        Ok(times)
    })?;
    if let Some(times) = times {
        group.add(NAME, None, &times);
    }
    Ok(())
}
