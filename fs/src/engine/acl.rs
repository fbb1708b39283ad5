//! POSIX access control lists as the kernel hands them over. Pure.
//!
//! The kernel checks permissions against them; what is left to the file system is to keep the
//! mode and the access ACL saying the same, and to inherit default ACLs. Format: the extended
//! attribute representation of `linux/posix_acl_xattr.h` (version 2: a 32-bit header, then tag,
//! permissions and id of each entry, little endian). Rules: POSIX 1003.1e draft 17, section 23.

use std::sync::Arc;

use crate::attr::FileKind;

/// Name of a file's access ACL.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of a directory's default ACL.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl {
    entries: Vec<AclEntry>,
}

/// What a new file gets from its parent.
pub(super) struct Inherited {
    /// Permission bits.
    pub(super) perm: u16,
    /// ACLs as extended attributes.
    pub(super) xattrs: Vec<(&'static [u8], Arc<[u8]>)>,
}

/// Reads an ACL; `None` unless it is one by the rules: each required entry once, named entries
/// sorted and unique, a mask where there are named entries.
pub(super) fn parse(value: &[u8]) -> Option<Acl> {
    let (header, body) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*header) != VERSION || !body.len().is_multiple_of(8) {
        return None;
    }
    let entries: Vec<AclEntry> = body
        .chunks_exact(8)
        .map(|e| AclEntry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            perm: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        })
        .collect();
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let named = count(USER) + count(GROUP);
    let ordered = entries.windows(2).all(|pair| {
        pair[0].tag < pair[1].tag
            || (pair[0].tag == pair[1].tag
                && matches!(pair[0].tag, USER | GROUP)
                && pair[0].id < pair[1].id)
    });
    let valid = ordered
        && entries.iter().all(|entry| {
            entry.perm <= 7
                && matches!(
                    entry.tag,
                    USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER
                )
        })
        && [USER_OBJ, GROUP_OBJ, OTHER]
            .iter()
            .all(|&tag| count(tag) == 1)
        && count(MASK) <= 1
        && (named == 0 || count(MASK) == 1);
    valid.then_some(Acl { entries })
}

impl Acl {
    fn encode(&self) -> Arc<[u8]> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.perm.to_le_bytes());
            let id = if matches!(entry.tag, USER | GROUP) {
                entry.id
            } else {
                NO_ID
            };
            value.extend_from_slice(&id.to_le_bytes());
        }
        Arc::from(value)
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.entries
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| entry.perm)
    }

    fn update(&mut self, tag: u16, change: impl Fn(u16) -> u16) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
            entry.perm = change(entry.perm);
        }
    }

    fn group_class(&self) -> u16 {
        if self.get(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    /// Whether nine mode bits say the same.
    pub(super) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The mode that goes with this access ACL; bits other than the nine are kept from `perm`.
    pub(super) fn perm_over(&self, perm: u16) -> u16 {
        let bits = |tag| self.get(tag).unwrap_or(0);
        (perm & !0o777) | bits(USER_OBJ) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }
}

/// The access ACL after chmod; `None` drops one that cannot be read.
pub(super) fn chmod(access: &[u8], perm: u16) -> Option<Arc<[u8]>> {
    let mut acl = parse(access)?;
    let group = acl.group_class();
    acl.update(USER_OBJ, |_| perm >> 6 & 7);
    acl.update(group, |_| perm >> 3 & 7);
    acl.update(OTHER, |_| perm & 7);
    Some(acl.encode())
}

/// Permissions and ACLs of a file made with `perm` under a directory with this default ACL.
pub(super) fn inherit(default: Option<&[u8]>, kind: FileKind, perm: u16, umask: u16) -> Inherited {
    let Some(mut acl) = default
        .filter(|_| kind != FileKind::Symlink)
        .and_then(parse)
    else {
        return Inherited {
            perm: perm & !umask,
            xattrs: Vec::new(),
        };
    };
    let mut xattrs = Vec::new();
    if kind == FileKind::Directory {
        xattrs.push((DEFAULT, acl.encode()));
    }
    let group = acl.group_class();
    acl.update(USER_OBJ, |bits| bits & perm >> 6);
    acl.update(group, |bits| bits & perm >> 3);
    acl.update(OTHER, |bits| bits & perm);
    let perm = acl.perm_over(perm);
    if !acl.is_minimal() {
        xattrs.push((ACCESS, acl.encode()));
    }
    Inherited { perm, xattrs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries
            .iter()
            .map(|&(tag, perm, id)| AclEntry { tag, perm, id })
            .collect();
        Acl { entries }.encode().to_vec()
    }

    fn full(group: u16, mask: u16) -> Vec<u8> {
        acl(&[
            (USER_OBJ, 7, 0),
            (USER, 6, 1000),
            (GROUP_OBJ, group, 0),
            (MASK, mask, 0),
            (OTHER, 1, 0),
        ])
    }

    #[test]
    fn malformed_acls_are_refused() {
        assert!(parse(&full(5, 7)).is_some());
        assert!(parse(b"").is_none());
        assert!(parse(&[1, 0, 0, 0]).is_none());
        assert!(parse(&full(5, 7)[..11]).is_none());
        assert!(parse(&acl(&[(USER_OBJ, 7, 0), (OTHER, 0, 0)])).is_none());
        assert!(parse(&acl(&[(USER_OBJ, 9, 0), (GROUP_OBJ, 0, 0), (OTHER, 0, 0)])).is_none());
        let no_mask = [
            (USER_OBJ, 7, 0),
            (USER, 7, 1),
            (GROUP_OBJ, 0, 0),
            (OTHER, 0, 0),
        ];
        assert!(parse(&acl(&no_mask)).is_none());
        let twice = [
            (USER_OBJ, 7, 0),
            (USER, 7, 1),
            (USER, 7, 1),
            (GROUP_OBJ, 0, 0),
            (MASK, 7, 0),
            (OTHER, 0, 0),
        ];
        assert!(parse(&acl(&twice)).is_none());
    }

    #[test]
    fn the_mask_is_the_group_class_of_the_mode() {
        let value = full(5, 6);
        assert_eq!(parse(&value).unwrap().perm_over(0o4000), 0o4761);
        let changed = parse(&chmod(&value, 0o640).unwrap()).unwrap();
        assert_eq!(changed.perm_over(0), 0o640);
        assert_eq!(changed.get(GROUP_OBJ), Some(5));
        assert_eq!(changed.get(MASK), Some(4));
    }

    #[test]
    fn a_default_acl_replaces_the_umask() {
        let made = inherit(Some(&full(5, 7)), FileKind::File, 0o666, 0o077);
        assert_eq!(made.perm, 0o660);
        assert_eq!(made.xattrs.len(), 1);
        let directory = inherit(Some(&full(5, 7)), FileKind::Directory, 0o777, 0o077);
        assert_eq!(directory.xattrs.len(), 2);
        assert_eq!(inherit(None, FileKind::File, 0o666, 0o022).perm, 0o644);
        let link = inherit(Some(&full(5, 7)), FileKind::Symlink, 0o777, 0o022);
        assert!(link.xattrs.is_empty());
    }
}
