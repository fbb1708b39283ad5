//! Installing into a scratch directory, from kernels and modules that are made up.

use super::*;

const DEP: &str = "\
kernel/virtiofs.ko: kernel/fuse.ko
kernel/fuse.ko:
kernel/virtio_mmio.ko:
kernel/vmw_vsock_virtio_transport.ko:
";

fn kernel(dir: &Path, version: &str) -> PathBuf {
    let path = dir.join("vmlinux");
    let text = format!("\x7fELF\x02\x01 Linux version {version} (me)");
    fs::write(&path, text).unwrap();
    path
}

fn modules(dir: &Path, version: &str) -> PathBuf {
    let modules = dir.join("lib");
    fs::create_dir_all(modules.join("kernel")).unwrap();
    fs::write(modules.join("modules.dep"), DEP).unwrap();
    fs::write(modules.join("modules.builtin"), "").unwrap();
    for line in DEP.lines() {
        let (path, _) = line.split_once(':').unwrap();
        let text = format!("{path}\0vermagic={version} SMP\0");
        fs::write(modules.join(path), text).unwrap();
    }
    modules
}

fn files(kernel: PathBuf, modules: Option<PathBuf>) -> Source {
    Source::Files { kernel, modules }
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_was_installed_is_found_and_nothing_else_is_left() {
    let scratch = tempfile::tempdir().unwrap();
    let source = files(
        kernel(scratch.path(), "6.1.0"),
        Some(modules(scratch.path(), "6.1.0")),
    );
    let store = scratch.path().join("store");
    let dir = store.join("guest");
    assert!(matches!(find(&dir), Err(FindError::None)));
    let installed = install(&source, b"agent", &dir).unwrap();
    assert_eq!(installed.facts.version.as_deref(), Some("6.1.0"));
    assert_eq!(
        installed.facts.modules,
        [
            "virtio_mmio.ko",
            "fuse.ko",
            "virtiofs.ko",
            "vmw_vsock_virtio_transport.ko"
        ]
    );
    assert_eq!(find(&dir).unwrap(), installed);
    // Again, over it.
    install(&source, b"agent", &dir).unwrap();
    assert_eq!(entries(&store), ["guest"]);
    assert_eq!(
        entries(&dir),
        ["initramfs", "kernel", "kernel.json", "modules"]
    );
}

#[test]
fn another_agent_makes_another_initramfs_of_the_same_kernel() {
    let scratch = tempfile::tempdir().unwrap();
    let source = files(
        kernel(scratch.path(), "6.1.0"),
        Some(modules(scratch.path(), "6.1.0")),
    );
    let dir = scratch.path().join("guest");
    let first = install(&source, b"agent", &dir).unwrap();
    assert_eq!(refresh(first.clone(), b"agent").unwrap(), first);
    let second = refresh(first.clone(), b"agent 2").unwrap();
    assert_eq!(second.facts.kernel_blake3, first.facts.kernel_blake3);
    assert_eq!(second.facts.modules, first.facts.modules);
    assert_ne!(second.facts.initramfs_blake3, first.facts.initramfs_blake3);
    assert_eq!(find(&dir).unwrap(), second);
}

#[test]
fn a_kernel_with_everything_built_in_needs_no_modules() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("guest");
    let installed = install(
        &files(kernel(scratch.path(), "6.1.0"), None),
        b"agent",
        &dir,
    );
    assert_eq!(installed.unwrap().facts.modules, Vec::<String>::new());
}

#[test]
fn modules_of_another_kernel_and_what_is_no_kernel_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("guest");
    let source = files(
        kernel(scratch.path(), "6.1.0"),
        Some(modules(scratch.path(), "6.1.1")),
    );
    let error = install(&source, b"agent", &dir).unwrap_err();
    assert!(matches!(error, InstallError::Mismatch { .. }), "{error}");
    let script = scratch.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let error = install(&files(script, None), b"agent", &dir).unwrap_err();
    assert!(matches!(error, InstallError::NoKernel(_)), "{error}");
    let empty = scratch.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let source = files(kernel(scratch.path(), "6.1.0"), Some(empty));
    let error = install(&source, b"agent", &dir).unwrap_err();
    assert!(error.hint().contains("depmod"), "{error}");
    assert!(!dir.exists());
}

#[test]
fn a_file_that_was_cut_short_is_noticed() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("guest");
    install(
        &files(kernel(scratch.path(), "6.1.0"), None),
        b"agent",
        &dir,
    )
    .unwrap();
    fs::write(dir.join("initramfs"), "").unwrap();
    assert!(matches!(find(&dir), Err(FindError::Damaged { .. })));
}
