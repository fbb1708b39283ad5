//! Extended attributes of one file as a sorted map, symbolic links not followed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;

/// Largest value and largest list that Linux allows.
const LIMIT: usize = 64 * 1024;

/// Reads all extended attributes, ACLs (`system.posix_acl_*`) included.
///
/// # Errors
/// When they cannot be read. A file system without them has none.
pub fn read(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = vec![0; LIMIT];
    let len = match llistxattr(path, &mut list) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut found = BTreeMap::new();
    let mut value = vec![0; LIMIT];
    for name in list[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        match lgetxattr(path, name, &mut value) {
            Ok(len) => {
                found.insert(name.to_vec(), value[..len].to_vec());
            }
            // Listed but not readable here (a default ACL while it is replaced, SELinux off).
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}
