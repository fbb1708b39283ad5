//! What the daemon keeps in an image besides the machine: what the servers of its file systems know of the guest.
//!
//! ```text
//! count: u8, then for each: length of the tag: u8, tag, length: u32 little-endian, state as bytes
//! ```

/// A file system's tag, and the state of its server ([`floe_fs::dispatch::wire::ServerState`]) as bytes.
pub(super) type Saved = (String, Vec<u8>);

/// As an image keeps them.
pub(super) fn encode(all: &[Saved]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(all.len()).unwrap_or(u8::MAX)];
    for (tag, state) in all {
        bytes.push(u8::try_from(tag.len()).unwrap_or(u8::MAX));
        bytes.extend(tag.as_bytes());
        bytes.extend(u32::try_from(state.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(state);
    }
    bytes
}

/// Reads them again; none if they are something else.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Saved>> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut all = Vec::new();
    for _ in 0..count {
        let (&len, tail) = rest.split_first()?;
        let (tag, tail) = tail.split_at_checked(usize::from(len))?;
        let (len, tail) = tail.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (state, tail) = tail.split_at_checked(len)?;
        all.push((String::from_utf8(tag.to_vec()).ok()?, state.to_vec()));
        rest = tail;
    }
    rest.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_reads_as_it_was_and_nothing_else_is_taken() {
        let all = vec![
            ("root".to_owned(), vec![1, 2, 3]),
            ("workspace".to_owned(), Vec::new()),
        ];
        let bytes = encode(&all);
        assert_eq!(decode(&bytes), Some(all));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(decode(&encode(&[])), Some(Vec::new()));
    }
}
