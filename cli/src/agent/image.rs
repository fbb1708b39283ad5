//! The agent's program, as `build.rs` has built it.

/// A static ELF program for the machine that `floe` is for.
pub const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/floe-guest"));

#[cfg(test)]
mod tests {
    use super::IMAGE;

    #[test]
    fn the_agent_is_a_static_program() {
        // https://man7.org/linux/man-pages/man5/elf.5.html: a program with an interpreter is not.
        assert!(IMAGE.starts_with(b"\x7fELF\x02\x01\x01"));
        let word = |at: usize| u16::from_le_bytes([IMAGE[at], IMAGE[at + 1]]);
        let table = usize::try_from(u64::from_le_bytes(IMAGE[32..40].try_into().unwrap())).unwrap();
        let (size, count) = (usize::from(word(54)), usize::from(word(56)));
        assert!(count > 0);
        for entry in 0..count {
            let at = table + entry * size;
            let kind = u32::from_le_bytes(IMAGE[at..at + 4].try_into().unwrap());
            assert_ne!(kind, 3, "PT_INTERP");
        }
    }
}
