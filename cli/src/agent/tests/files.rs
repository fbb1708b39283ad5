//! Reading and writing files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use bytes::Bytes;

use super::guest::Guest;
use super::{guest, root_runs_the_tests};
use crate::agent::{AgentError, EntryKind};

const MUCH: usize = 20 * 1024 * 1024;

/// Bytes that are not the same everywhere.
fn bytes(len: usize) -> Vec<u8> {
    let numbers = (0u32..).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes());
    numbers.take(len).collect()
}

async fn read(guest: &Guest, path: &str) -> Result<Vec<u8>, AgentError> {
    let mut reader = guest.agent.read_file(path, guest.user()).await?;
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await? {
        all.extend_from_slice(&piece);
    }
    // Asking again changes nothing.
    assert_eq!(reader.next().await?, None);
    Ok(all)
}

async fn write(guest: &Guest, path: &str, content: &[u8]) -> Result<(), AgentError> {
    let mut writer = guest.agent.write_file(path, guest.user()).await?;
    for piece in content.chunks(1_000_003) {
        writer.write(Bytes::copy_from_slice(piece)).await?;
    }
    let entry = writer.finish().await?;
    assert_eq!(usize::try_from(entry.size), Ok(content.len()));
    assert_eq!(entry.path, path);
    Ok(())
}

#[test]
fn a_large_file_is_written_and_read_as_it_is() {
    guest(async |guest| {
        let content = bytes(MUCH);
        let path = guest.path("new/dirs/large");
        write(guest, &path, &content).await.unwrap();
        assert!(fs::read(&path).unwrap() == content);
        assert!(read(guest, &path).await.unwrap() == content);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    });
}

#[test]
fn many_files_are_written_and_read_at_once() {
    guest(async |guest| {
        let one = async |number: usize| {
            let content = bytes(300_000 + number);
            let path = guest.path(&format!("f{number}"));
            write(guest, &path, &content).await.unwrap();
            assert!(read(guest, &path).await.unwrap() == content);
        };
        futures_util::future::join_all((0..40).map(one)).await;
    });
}

#[test]
fn writing_replaces_what_was_there_and_nothing_is_something_to_write() {
    guest(async |guest| {
        let path = guest.path("f");
        write(guest, &path, b"long before").await.unwrap();
        write(guest, &path, b"new").await.unwrap();
        assert_eq!(read(guest, &path).await.unwrap(), b"new");
        write(guest, &path, b"").await.unwrap();
        assert_eq!(read(guest, &path).await.unwrap(), b"");
    });
}

#[test]
fn files_of_proc_are_read_to_their_end() {
    guest(async |guest| {
        let reader = guest
            .agent
            .read_file("/proc/self/status", guest.user())
            .await;
        assert_eq!(reader.unwrap().entry.size, 0);
        let status = read(guest, "/proc/self/status").await.unwrap();
        assert!(String::from_utf8_lossy(&status).contains(&format!("Pid:\t{}\n", guest.pid)));
    });
}

#[test]
fn links_are_read_and_written_through() {
    guest(async |guest| {
        symlink("target", guest.dir().join("link")).unwrap();
        write(guest, &guest.path("link"), b"through").await.unwrap();
        assert_eq!(fs::read(guest.dir().join("target")).unwrap(), b"through");
        assert_eq!(read(guest, &guest.path("link")).await.unwrap(), b"through");
        let reader = guest
            .agent
            .read_file(&guest.path("link"), guest.user())
            .await;
        assert_eq!(reader.unwrap().entry.kind, EntryKind::File);
        symlink("round", guest.dir().join("round")).unwrap();
        let error = read(guest, &guest.path("round")).await.unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_written() {
    guest(async |guest| {
        guest.output("mkfifo fifo; mkdir dir").await;
        for (path, is_dir) in [
            (guest.path("fifo"), false),
            ("/dev/zero".to_owned(), false),
            (guest.path("dir"), true),
        ] {
            for error in [
                read(guest, &path).await.unwrap_err(),
                write(guest, &path, b"x").await.unwrap_err(),
            ] {
                let expected = match error {
                    AgentError::IsADirectory { .. } => is_dir,
                    AgentError::InvalidArgument { .. } => !is_dir,
                    _ => false,
                };
                assert!(expected, "{path}: {error:?}");
            }
        }
    });
}

#[test]
fn what_cannot_be_opened_is_a_failure_with_its_name() {
    guest(async |guest| {
        fs::write(guest.dir().join("file"), "").unwrap();
        let error = read(guest, &guest.path("missing")).await.unwrap_err();
        let AgentError::NotFound { message } = &error else {
            panic!("{error:?}");
        };
        assert!(message.contains("missing"), "{message}");
        let below = guest.path("file/below");
        for error in [
            read(guest, &below).await.unwrap_err(),
            write(guest, &below, b"x").await.unwrap_err(),
        ] {
            assert!(
                matches!(error, AgentError::NotADirectory { .. }),
                "{error:?}"
            );
        }
        let error = guest
            .agent
            .read_file("a\0b", guest.user())
            .await
            .unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn files_are_those_of_the_user_who_is_named() {
    guest(async |guest| {
        fs::set_permissions(guest.dir(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(guest.dir().join("secret"), "x").unwrap();
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(guest.dir().join("secret"), mode).unwrap();
        // Without the right to act as somebody else, nothing is done as somebody else either.
        let nobody = Some("nobody");
        let error = guest
            .agent
            .read_file(&guest.path("secret"), nobody)
            .await
            .unwrap_err();
        assert!(
            matches!(error, AgentError::PermissionDenied { .. }),
            "{error:?}"
        );
        let written = guest.agent.write_file(&guest.path("theirs"), nobody).await;
        assert_eq!(written.is_ok(), root_runs_the_tests(), "{written:?}");
        if let Ok(writer) = written {
            assert_eq!(writer.finish().await.unwrap().owner, "nobody");
        }
        // And the next is done as root again.
        let content = read(guest, &guest.path("secret")).await.unwrap();
        assert_eq!(content, b"x");
        let error = guest
            .agent
            .stat("/", Some("no-such-user"))
            .await
            .unwrap_err();
        assert!(matches!(error, AgentError::UnknownUser { .. }), "{error:?}");
    });
}

#[test]
fn who_stops_reading_or_writing_is_in_nobodys_way() {
    guest(async |guest| {
        let content = bytes(2 * 1024 * 1024);
        let path = guest.path("large");
        write(guest, &path, &content).await.unwrap();
        let mut kept = Vec::new();
        for number in 0..20 {
            let mut reader = guest.agent.read_file(&path, guest.user()).await.unwrap();
            assert!(reader.next().await.unwrap().is_some());
            let part = guest.path(&format!("part{number}"));
            let mut writer = guest.agent.write_file(&part, guest.user()).await.unwrap();
            writer.write(Bytes::from_static(b"part")).await.unwrap();
            if number % 2 == 0 {
                kept.push((reader, writer));
            }
        }
        assert!(read(guest, &path).await.unwrap() == content);
        for (mut reader, writer) in kept {
            let mut left = 0;
            while let Some(piece) = reader.next().await.unwrap() {
                left += piece.len();
            }
            assert!(left > 0 && left < content.len());
            assert_eq!(writer.finish().await.unwrap().size, 4);
        }
    });
}
