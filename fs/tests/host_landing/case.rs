//! A directory with a bit of everything, and a plan that changes all of it.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use floe_fs::{HostChange, HostPart, HostPlan, NewKind, Source};

use super::tree::{
    attributed, dated, fifo, file, meta, put, put_file, remove, rename, set_meta, with_attributes,
};

/// A hole of this size comes before the last bytes of the large file.
const HOLE: u64 = 3 << 20;

/// Contents by number; something may be done when the first are asked for, which is after the check.
pub struct Contents<'a>(pub &'a dyn Fn());

fn bytes(number: u64) -> Vec<u8> {
    match number {
        99 => b"the end".to_vec(),
        number => format!("new contents {number}\n")
            .repeat(number as usize)
            .into_bytes(),
    }
}

pub fn size(number: u64) -> u64 {
    let hole = if number == 99 { HOLE } else { 0 };
    hole + bytes(number).len() as u64
}

impl Source for Contents<'_> {
    fn read(&self, number: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        (self.0)();
        let hole = if number == 99 { HOLE } else { 0 };
        let mut all = vec![0; hole as usize];
        all.extend(bytes(number));
        let from = (offset as usize).min(all.len());
        out.extend(&all[from..(from + len).min(all.len())]);
        Ok(())
    }

    fn data(&self, number: u64, from: u64) -> io::Result<Option<Range<u64>>> {
        let start = if number == 99 { HOLE } else { 0 };
        let from = from.max(start);
        Ok((from < size(number)).then(|| from..size(number)))
    }
}

/// Makes the directory.
pub fn make(root: &Path) {
    fs::create_dir_all(root.join("src/deep/er")).unwrap();
    for dir in ["old", "old/sub", "kind", "empty", "left", "meta-dir"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    for (path, mode) in [
        ("src/changed", 0o644),
        ("src/gone", 0o600),
        ("src/script", 0o755),
        ("src/deep/er/changed", 0o4711),
        ("old/stays", 0o644),
        ("old/changed", 0o644),
        ("old/gone", 0o644),
        ("old/sub/out", 0o644),
        ("kind/file", 0o644),
        ("left/x", 0o644),
        ("left/y", 0o600),
        ("untouched", 0o644),
        ("one", 0o644),
        ("removed-link", 0o644),
    ] {
        file(&root.join(path), format!("old {path}\n"), mode);
    }
    fs::create_dir(root.join("kind/dir")).unwrap();
    file(&root.join("kind/dir/inside"), "inside\n", 0o644);
    fs::hard_link(root.join("one"), root.join("two")).unwrap();
    symlink("src/changed", root.join("link")).unwrap();
    attributed(&root.join("src/script"), b"before");
    attributed(&root.join("src/gone"), b"kept");
    fifo(&root.join("pipe"));
}

/// The plan.
pub fn plan(root: &Path) -> HostPlan {
    let file =
        |path: &str, number: u64, perm: u16| put_file(path, number, size(number), perm, 2_000_000);
    let dir = |path: &str, perm: u16| put(path, NewKind::Directory, meta(perm, 2_000_000));
    let link = |path: &str, target: &str| {
        let target = target.into();
        put(path, NewKind::Symlink { target }, meta(0o777, 2_000_000))
    };
    let gone = |path: &str| remove(root, path);
    let changes: Vec<HostChange> = vec![
        // Contents, with other modes.
        gone("src/changed"),
        file("src/changed", 1, 0o640),
        gone("src/deep/er/changed"),
        file("new/made/deep/er/changed", 2, 0o755),
        gone("src/gone"),
        // A directory is renamed, and changed inside; what was in it goes out, what is new comes in.
        rename(root, "old", "new"),
        gone("old/changed"),
        file("new/changed", 3, 0o644),
        gone("old/gone"),
        rename(root, "old/sub/out", "src/came-out"),
        gone("old/sub"),
        file("new/added", 4, 0o600),
        dir("new/made", 0o750),
        rename(root, "src/deep", "new/made/deep"),
        // Two files exchange their names, one of them with other metadata.
        rename(root, "left/x", "left/y"),
        rename(root, "left/y", "left/x"),
        set_meta(root, "left/y", "left/x", meta(0o400, 3_000_000)),
        // Things become other things.
        gone("kind/file"),
        dir("kind/file", 0o555),
        file("kind/file/within", 5, 0o444),
        gone("kind/dir/inside"),
        gone("kind/dir"),
        file("kind/dir", 6, 0o644),
        gone("link"),
        link("link", "untouched"),
        gone("pipe"),
        link("pipe", "nowhere"),
        // Metadata alone.
        set_meta(
            root,
            "src/script",
            "src/script",
            with_attributes(0o700, 4_000_000, &[b"after"]),
        ),
        set_meta(root, "meta-dir", "meta-dir", meta(0o711, 1)),
        // New things of every kind.
        dir("nest", 0o755),
        dir("nest/more", 0o700),
        file("nest/more/large", 99, 0o644),
        file("nest/a", 7, 0o644),
        put(
            "nest/b",
            NewKind::Link {
                to: b"nest/a".into(),
            },
            meta(0o644, 2_000_000),
        ),
        put(
            "nest/fifo",
            NewKind::Special {
                kind: floe_fs::attr::FileKind::Fifo,
                rdev: 0,
            },
            meta(0o640, 2_000_000),
        ),
        gone("empty"),
        gone("removed-link"),
    ];
    HostPlan {
        parts: vec![HostPart {
            root: root.to_owned(),
            changes,
        }],
    }
}

/// Does the same with ordinary calls.
pub fn expect(root: &Path) {
    let at = |path: &str| root.join(path);
    let mode =
        |path: &str, mode| fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    let written = |path: &str, number: u64, perm: u32| {
        let mut all = Vec::new();
        Contents(&|| ())
            .read(number, 0, size(number) as usize, &mut all)
            .unwrap();
        file(&at(path), all, 0o600);
        dated(&at(path), 2_000_000);
        mode(path, perm);
    };
    let gone = |path: &str| fs::remove_file(at(path)).unwrap();
    gone("src/changed");
    written("src/changed", 1, 0o640);
    gone("src/deep/er/changed");
    written("src/deep/er/changed", 2, 0o755);
    gone("src/gone");
    fs::rename(at("old"), at("new")).unwrap();
    gone("new/changed");
    written("new/changed", 3, 0o644);
    gone("new/gone");
    fs::rename(at("new/sub/out"), at("src/came-out")).unwrap();
    fs::remove_dir(at("new/sub")).unwrap();
    written("new/added", 4, 0o600);
    fs::create_dir(at("new/made")).unwrap();
    mode("new/made", 0o750);
    fs::rename(at("src/deep"), at("new/made/deep")).unwrap();
    fs::rename(at("left/x"), at("left/z")).unwrap();
    fs::rename(at("left/y"), at("left/x")).unwrap();
    fs::rename(at("left/z"), at("left/y")).unwrap();
    dated(&at("left/x"), 3_000_000);
    mode("left/x", 0o400);
    gone("kind/file");
    fs::create_dir(at("kind/file")).unwrap();
    written("kind/file/within", 5, 0o444);
    mode("kind/file", 0o555);
    gone("kind/dir/inside");
    fs::remove_dir(at("kind/dir")).unwrap();
    written("kind/dir", 6, 0o644);
    gone("link");
    symlink("untouched", at("link")).unwrap();
    gone("pipe");
    symlink("nowhere", at("pipe")).unwrap();
    attributed(&at("src/script"), b"after");
    dated(&at("src/script"), 4_000_000);
    mode("src/script", 0o700);
    mode("meta-dir", 0o711);
    fs::create_dir_all(at("nest/more")).unwrap();
    mode("nest/more", 0o700);
    written("nest/more/large", 99, 0o644);
    written("nest/a", 7, 0o644);
    fs::hard_link(at("nest/a"), at("nest/b")).unwrap();
    fifo(&at("nest/fifo"));
    fs::remove_dir(at("empty")).unwrap();
    gone("removed-link");
}
