//! POSIX ACLs in the model: the rules of acl(5), on lists of (tag, permissions, id).

use floe_fs::attr::FileKind;

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

type Acl = Vec<(u16, u16, u32)>;

/// A value for the attribute. Some shapes are no ACL at all.
pub fn value(shape: u8) -> Vec<u8> {
    let none = u32::MAX;
    let bits = |shift: u8| u16::from(shape.rotate_left(u32::from(shift)) & 7);
    let mut acl: Acl = vec![(USER_OBJ, bits(0), none)];
    if shape & 1 != 0 {
        acl.push((USER, bits(1), 1000));
    }
    acl.push((GROUP_OBJ, bits(2), none));
    if shape & 2 != 0 {
        acl.push((GROUP, bits(3), 1000));
    }
    if shape & 3 != 0 {
        acl.push((MASK, bits(4), none));
    }
    acl.push((OTHER, bits(5), none));
    match shape {
        // An entry twice, an entry missing, a torn value.
        250 => acl.push((OTHER, 7, none)),
        251 => drop(acl.pop()),
        252 => return encode(&acl)[1..].to_vec(),
        253 => return Vec::new(),
        _ => {}
    }
    encode(&acl)
}

fn encode(acl: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for &(tag, perm, id) in acl {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn decode(value: &[u8]) -> Acl {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
    let short = |bytes: &[u8]| u16::try_from(number(bytes)).unwrap();
    value[4..]
        .chunks_exact(8)
        .map(|e| (short(&e[..2]), short(&e[2..4]), number(&e[4..])))
        .collect()
}

/// Whether a value made by [`value`] is an ACL.
pub fn is_valid(value: &[u8]) -> bool {
    if value.len() < 4 || value.len() % 8 != 4 {
        return false;
    }
    let acl = decode(value);
    let count = |tag| acl.iter().filter(|entry| entry.0 == tag).count();
    count(USER_OBJ) == 1 && count(GROUP_OBJ) == 1 && count(OTHER) == 1
}

pub fn is_minimal(value: &[u8]) -> bool {
    decode(value).len() == 3
}

/// The nine permission bits that an ACL means.
pub fn mode_bits(value: &[u8]) -> u16 {
    let acl = decode(value);
    let bits = |tag| acl.iter().find(|e| e.0 == tag).map(|e| e.1);
    let group = bits(MASK).or(bits(GROUP_OBJ)).unwrap_or(0);
    bits(USER_OBJ).unwrap_or(0) << 6 | group << 3 | bits(OTHER).unwrap_or(0)
}

fn with_mode(value: &[u8], combine: impl Fn(u16, u16) -> u16, mode: u16) -> Vec<u8> {
    let mut acl = decode(value);
    let masked = acl.iter().any(|e| e.0 == MASK);
    for entry in &mut acl {
        let class = match entry.0 {
            USER_OBJ => mode >> 6,
            MASK => mode >> 3,
            GROUP_OBJ if !masked => mode >> 3,
            OTHER => mode,
            _ => continue,
        };
        entry.1 = combine(entry.1, class & 7);
    }
    encode(&acl)
}

/// The access ACL after chmod.
pub fn chmod(value: &[u8], mode: u16) -> Vec<u8> {
    with_mode(value, |_, new| new, mode)
}

/// Names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Permissions and ACLs of a new file under a directory with a default ACL.
pub fn inherit(default: &[u8], kind: FileKind, perm: u16) -> (u16, Xattrs) {
    let access = with_mode(default, |old, asked| old & asked, perm);
    let mut xattrs = Vec::new();
    if kind == FileKind::Directory {
        xattrs.push((DEFAULT.to_vec(), default.to_vec()));
    }
    if !is_minimal(&access) {
        xattrs.push((ACCESS.to_vec(), access.clone()));
    }
    (perm & !0o777 | mode_bits(&access), xattrs)
}
