//! User and group ids of a mount that are others on the host than in the store. Pure.
//!
//! A mount with a shift belongs to a user namespace in which the ids 0 to 65,535 are a range of the host's
//! (user_namespaces(7)). The kernel speaks to a FUSE server that was mounted outside of it in ids of the
//! host; the store holds those of the inside, so that what it holds can be mounted with any range.
//! Ids stand in requests, in attributes, in POSIX ACLs (`linux/posix_acl_xattr.h`) and in capabilities of
//! files (`linux/capability.h`, `struct vfs_ns_cap_data`).

use std::borrow::Cow;

/// Which ids of the host those of a mount are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdShift {
    /// What 0 in the store is on the host; at most [`IdShift::BASE_MAX`].
    pub base: u32,
}

impl IdShift {
    /// How many ids there are inside.
    pub const COUNT: u32 = 65_536;
    /// Largest base. The largest number of 32 bits is no id.
    pub const BASE_MAX: u32 = u32::MAX - Self::COUNT;
    /// Who owns, inside, what belongs to somebody who is not known there.
    pub(super) const NOBODY: u32 = 65_534;

    /// The id inside of one of the host. The host's root, which sets mounts up, counts as root inside.
    fn known(self, host: u32) -> Option<u32> {
        match host.checked_sub(self.base) {
            Some(inside) if inside < Self::COUNT => Some(inside),
            _ if host == 0 => Some(0),
            _ => None,
        }
    }

    /// The id on the host of one inside.
    fn shown(self, inside: u32) -> Option<u32> {
        (inside < Self::COUNT).then(|| self.base.saturating_add(inside))
    }

    /// As whom somebody of the host acts.
    pub(super) fn acting(self, host: u32) -> u32 {
        self.known(host).unwrap_or(Self::NOBODY)
    }

    /// Whom something belongs to from then on; `None` if nobody inside has the id.
    pub(super) fn given_to(self, host: u32) -> Option<u32> {
        self.known(host)
    }

    /// Whom something belongs to, on the host.
    pub(super) fn owner(self, inside: u32) -> u32 {
        let known = self.shown(inside);
        known.unwrap_or_else(|| self.base.saturating_add(Self::NOBODY))
    }

    /// The value of an extended attribute as the store holds it; `None` if it names an id that nobody has
    /// inside. What is malformed stays as it is, to be refused.
    pub(super) fn xattr_in<'v>(self, name: &[u8], value: &'v [u8]) -> Option<Cow<'v, [u8]>> {
        match name {
            ACL_ACCESS | ACL_DEFAULT => self.acl_in(value),
            CAPABILITY => self.capability_in(value),
            _ => Some(value.into()),
        }
    }

    /// The value of an extended attribute as the kernel is told it.
    pub(super) fn xattr_out(self, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        match name {
            ACL_ACCESS | ACL_DEFAULT => self.acl_out(value),
            CAPABILITY => self.capability_out(value),
            _ => value,
        }
    }

    fn acl_in(self, value: &[u8]) -> Option<Cow<'_, [u8]>> {
        let mut shifted = value.to_vec();
        for entry in acl_entries(&mut shifted) {
            if let Some(id) = named(entry) {
                set_word(entry, ACL_ID, self.known(id)?);
            }
        }
        Some(shifted.into())
    }

    /// Who is not known inside is left out: no process there can be meant by an entry, and one for somebody
    /// else would give that one rights.
    fn acl_out(self, mut value: Vec<u8>) -> Vec<u8> {
        let mut unknown = Vec::new();
        for (at, entry) in acl_entries(&mut value).enumerate() {
            if let Some(id) = named(entry) {
                match self.shown(id) {
                    Some(id) => set_word(entry, ACL_ID, id),
                    None => unknown.push(ACL_HEADER + at * ACL_ENTRY),
                }
            }
        }
        for at in unknown.into_iter().rev() {
            value.drain(at..at + ACL_ENTRY);
        }
        value
    }

    /// Capabilities that root inside gave come with its id on the host. Inside they are without one, as
    /// those of an image are.
    fn capability_in(self, value: &[u8]) -> Option<Cow<'_, [u8]>> {
        let Some(root) = capability_root(value) else {
            return Some(value.into());
        };
        let mut shifted = value.to_vec();
        match self.known(root)? {
            0 => {
                shifted.truncate(CAPABILITY_2_LEN);
                set_revision(&mut shifted, CAPABILITY_2);
            }
            root => set_word(&mut shifted, CAPABILITY_ROOT, root),
        }
        Some(shifted.into())
    }

    fn capability_out(self, mut value: Vec<u8>) -> Vec<u8> {
        let without_root =
            value.len() == CAPABILITY_2_LEN && revision(&value) == Some(CAPABILITY_2);
        if without_root {
            set_revision(&mut value, CAPABILITY_3);
            value.extend_from_slice(&self.base.to_le_bytes());
        } else if let Some(root) = capability_root(&value) {
            set_word(&mut value, CAPABILITY_ROOT, self.owner(root));
        }
        value
    }
}

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const ACL_VERSION: u32 = 2;
/// Bytes before the first entry, and of an entry; where the id is in one.
const ACL_HEADER: usize = 4;
const ACL_ENTRY: usize = 8;
const ACL_ID: usize = 4;
/// Tags of entries with an id.
const ACL_USER: [u8; 2] = [0x02, 0];
const ACL_GROUP: [u8; 2] = [0x08, 0];

/// The entries of an ACL; none if it is malformed.
fn acl_entries(value: &mut [u8]) -> std::slice::ChunksExactMut<'_, u8> {
    let header = value.first_chunk().copied().map(u32::from_le_bytes);
    let whole = value.len() % ACL_ENTRY == ACL_HEADER % ACL_ENTRY;
    let from = match header {
        Some(ACL_VERSION) if whole => ACL_HEADER,
        _ => value.len(),
    };
    value[from..].chunks_exact_mut(ACL_ENTRY)
}

/// The id of an entry that has one.
fn named(entry: &[u8]) -> Option<u32> {
    let tag = entry.first_chunk()?;
    (*tag == ACL_USER || *tag == ACL_GROUP).then(|| word(entry, ACL_ID))?
}

const CAPABILITY: &[u8] = b"security.capability";
const REVISION_MASK: u32 = 0xff00_0000;
const CAPABILITY_2: u32 = 0x0200_0000;
const CAPABILITY_3: u32 = 0x0300_0000;
/// Bytes of a value of revision 2, and of one of revision 3, which has the id of a root behind that.
const CAPABILITY_2_LEN: usize = 20;
const CAPABILITY_3_LEN: usize = 24;
const CAPABILITY_ROOT: usize = 20;

fn revision(value: &[u8]) -> Option<u32> {
    Some(word(value, 0)? & REVISION_MASK)
}

fn set_revision(value: &mut [u8], revision: u32) {
    let flags = word(value, 0).unwrap_or(0) & !REVISION_MASK;
    set_word(value, 0, flags | revision);
}

/// The id of the root for whose namespace capabilities are.
fn capability_root(value: &[u8]) -> Option<u32> {
    let has_one = value.len() == CAPABILITY_3_LEN && revision(value) == Some(CAPABILITY_3);
    has_one.then(|| word(value, CAPABILITY_ROOT))?
}

fn word(value: &[u8], at: usize) -> Option<u32> {
    let bytes = value.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn set_word(value: &mut [u8], at: usize, word: u32) {
    if let Some(bytes) = value.get_mut(at..at + 4) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHIFT: IdShift = IdShift { base: 1_000_000 };
    const USER_OBJ: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const NO_ID: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = ACL_VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&perm.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    fn full(user: u32, group: u32) -> Vec<u8> {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, user),
            (GROUP_OBJ, 5, NO_ID),
            (GROUP, 4, group),
            (MASK, 7, NO_ID),
            (OTHER, 1, NO_ID),
        ])
    }

    fn capability(root: Option<u32>) -> Vec<u8> {
        let revision = if root.is_some() {
            CAPABILITY_3
        } else {
            CAPABILITY_2
        };
        let mut value = (revision | 1).to_le_bytes().to_vec();
        value.extend_from_slice(&[0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        value.extend(root.iter().flat_map(|root| root.to_le_bytes()));
        value
    }

    #[test]
    fn ids_of_the_range_are_those_inside_and_roots_is_root() {
        for (host, inside) in [
            (1_000_000, 0),
            (1_001_000, 1000),
            (1_065_535, 65_535),
            (0, 0),
        ] {
            assert_eq!(SHIFT.acting(host), inside);
            assert_eq!(SHIFT.given_to(host), Some(inside));
        }
        for host in [1, 1000, 999_999, 1_065_536, u32::MAX] {
            assert_eq!(SHIFT.acting(host), 65_534);
            assert_eq!(SHIFT.given_to(host), None);
        }
        assert_eq!(SHIFT.owner(65_535), 1_065_535);
        for unknown in [65_536, u32::MAX] {
            assert_eq!(SHIFT.owner(unknown), 1_065_534);
        }
        // Where the range begins at 0, or ends with the last id.
        assert_eq!(IdShift { base: 0 }.acting(1000), 1000);
        let last = IdShift {
            base: IdShift::BASE_MAX,
        };
        assert_eq!(last.owner(65_535), u32::MAX - 1);
        assert_eq!(last.acting(u32::MAX - 1), 65_535);
        assert_eq!(last.given_to(u32::MAX), None);
    }

    #[test]
    fn acls_name_the_same_users_inside_and_on_the_host() {
        for name in [ACL_ACCESS, ACL_DEFAULT] {
            let host = full(1_001_000, 0);
            assert_eq!(SHIFT.xattr_in(name, &host).unwrap(), full(1000, 0));
            assert_eq!(
                SHIFT.xattr_out(name, full(1000, 0)),
                full(1_001_000, 1_000_000)
            );
            assert_eq!(SHIFT.xattr_in(name, &full(1000, 1_000_000)), None);
            assert_eq!(SHIFT.xattr_in(name, &full(1_000_000, 1000)), None);
        }
        let other = full(5, 5);
        assert_eq!(SHIFT.xattr_in(b"user.acl", &other).unwrap(), other);
        assert_eq!(SHIFT.xattr_out(b"user.acl", other.clone()), other);
    }

    #[test]
    fn who_is_not_known_inside_gets_nothing_by_an_acl() {
        let shown = SHIFT.xattr_out(ACL_ACCESS, full(65_536, 70_000));
        let expected = [
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (MASK, 7, NO_ID),
            (OTHER, 1, NO_ID),
        ];
        assert_eq!(shown, acl(&expected));
        let one = SHIFT.xattr_out(ACL_ACCESS, full(5, 70_000));
        assert_eq!(one.len(), shown.len() + ACL_ENTRY);
        assert_eq!(word(&one, ACL_HEADER + ACL_ENTRY + ACL_ID), Some(1_000_005));
    }

    #[test]
    fn malformed_values_stay_as_they_are() {
        let mut version = full(5, 5);
        version[0] = 1;
        let short = full(5, 5)[..11].to_vec();
        for wrong in [version, short, Vec::new(), vec![2, 0, 0]] {
            assert_eq!(SHIFT.xattr_in(ACL_ACCESS, &wrong).unwrap(), wrong);
            assert_eq!(SHIFT.xattr_out(ACL_ACCESS, wrong.clone()), wrong);
        }
        for wrong in [
            Vec::new(),
            vec![3, 0],
            vec![0; 24],
            capability(Some(5))[..21].to_vec(),
        ] {
            assert_eq!(SHIFT.xattr_in(CAPABILITY, &wrong).unwrap(), wrong);
            assert_eq!(SHIFT.xattr_out(CAPABILITY, wrong.clone()), wrong);
        }
    }

    #[test]
    fn capabilities_are_for_the_root_inside() {
        let given = capability(Some(1_000_000));
        let inside = SHIFT.xattr_in(CAPABILITY, &given).unwrap();
        assert_eq!(inside, capability(None));
        assert_eq!(SHIFT.xattr_out(CAPABILITY, capability(None)), given);
        let nested = capability(Some(1_000_007));
        let inside = SHIFT.xattr_in(CAPABILITY, &nested).unwrap();
        assert_eq!(inside, capability(Some(7)));
        assert_eq!(SHIFT.xattr_out(CAPABILITY, capability(Some(7))), nested);
        assert_eq!(SHIFT.xattr_in(CAPABILITY, &capability(Some(7))), None);
        // The host's root gives them without an id.
        let plain = capability(None);
        assert_eq!(SHIFT.xattr_in(CAPABILITY, &plain).unwrap(), plain);
    }

    proptest! {
        #[test]
        fn what_goes_out_comes_back(
            base in 0..=IdShift::BASE_MAX,
            id in 0..IdShift::COUNT,
            users in prop::collection::btree_set(0..IdShift::COUNT, 0..5),
            groups in prop::collection::btree_set(0..IdShift::COUNT, 0..5),
        ) {
            let shift = IdShift { base };
            prop_assert_eq!(shift.acting(shift.owner(id)), id);
            prop_assert_eq!(shift.given_to(shift.owner(id)), Some(id));
            let mut entries = vec![(USER_OBJ, 7, NO_ID)];
            entries.extend(users.iter().map(|user| (USER, 6, *user)));
            entries.push((GROUP_OBJ, 5, NO_ID));
            entries.extend(groups.iter().map(|group| (GROUP, 4, *group)));
            entries.extend([(MASK, 7, NO_ID), (OTHER, 1, NO_ID)]);
            let inside = acl(&entries);
            let out = shift.xattr_out(ACL_DEFAULT, inside.clone());
            prop_assert_eq!(shift.xattr_in(ACL_DEFAULT, &out).unwrap(), inside);
            for root in [None, Some(id).filter(|id| *id > 0)] {
                let inside = capability(root);
                let out = shift.xattr_out(CAPABILITY, inside.clone());
                prop_assert_eq!(shift.xattr_in(CAPABILITY, &out).unwrap(), inside);
            }
        }

        /// Nobody outside of the range acts as somebody inside, but as nobody; and whatever the bytes are, they are taken.
        #[test]
        fn any_id_and_any_bytes_are_taken(
            base in 0..=IdShift::BASE_MAX,
            host in any::<u32>(),
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let shift = IdShift { base };
            let acting = shift.acting(host);
            prop_assert!(acting < IdShift::COUNT);
            prop_assert!(host == 0 || acting == IdShift::NOBODY || shift.owner(acting) == host);
            for name in [ACL_ACCESS, CAPABILITY] {
                let out = shift.xattr_out(name, bytes.clone());
                prop_assert!(out.len() <= bytes.len() + 4);
                if let Some(inside) = shift.xattr_in(name, &bytes) {
                    prop_assert!(inside.len() <= bytes.len());
                }
            }
        }
    }
}
