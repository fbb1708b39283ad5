//! Copies of a whole tree: cp, cp with hard links, tar.

use std::process::Command;

use super::run;
use crate::bench::error::{BenchError, Step};
use crate::bench::fill::plain_tree;
use crate::bench::lab::Lab;
use crate::bench::report::{Group, Section};
use crate::bench::room::remove;
use crate::bench::stats::Times;

/// A way to copy: how it is shown, the program with its arguments, and whether the copy comes
/// before the tree on its command line.
const WAYS: [(&str, &[&str], bool); 3] = [
    (
        "cp -a --reflink=auto",
        &["cp", "-a", "--reflink=auto"],
        false,
    ),
    ("cp -al (hard links)", &["cp", "-al"], false),
    ("tar -cf", &["tar", "-cf"], true),
];

/// Copies a tree of so many files on the disk that the stores are on.
pub(in crate::bench) fn measure(
    lab: &Lab<'_>,
    section: &mut Section,
    group: &mut Group,
    files: u64,
) -> Result<(), BenchError> {
    let room = lab.room("copies")?;
    let tree = room.dir("tree").step("make a directory")?;
    lab.say("making the same tree in an ordinary directory");
    plain_tree(lab, &tree, files)?;
    for (name, words, copy_first) in WAYS {
        let copy = room.path().join("copy");
        let times = lab.attempt(section, name, || {
            let mut times = Times::default();
            for _ in 0..lab.pick(5, 2) {
                lab.check()?;
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                if copy_first {
                    command.args([&copy, &tree]);
                } else {
                    command.args([&tree, &copy]);
                }
                // tar says that it leaves the leading slash out.
                times.time(|| run(&mut command))?;
                if copy.is_dir() {
                    remove(&copy).step("remove a copy")?;
                } else {
                    std::fs::remove_file(&copy).step("remove a copy")?;
                }
            }
            Ok(times)
        })?;
        if let Some(times) = times {
            group.add(name, None, &times);
        }
    }
    Ok(())
}
