//! Fields of a message or frame, one after the other, from front to back.

use super::{NAME_MAX, WireError};

/// What is left of a body.
#[derive(Clone, Copy, Debug)]
pub(in crate::dispatch::wire) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(in crate::dispatch::wire) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes an array of bytes off the front.
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(WireError::Short { what })?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(in crate::dispatch::wire) fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(in crate::dispatch::wire) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(in crate::dispatch::wire) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn i64(&mut self, what: &'static str) -> Result<i64, WireError> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }

    /// A 32-bit field that is an `int` in the system call it stands for.
    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, WireError> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    /// Passes over a field that nothing here needs.
    pub(in crate::dispatch::wire) fn skip(
        &mut self,
        len: usize,
        what: &'static str,
    ) -> Result<(), WireError> {
        self.0 = self.0.get(len..).ok_or(WireError::Short { what })?;
        Ok(())
    }

    /// Everything that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Everything that is left, if it is as long as it was said to be.
    pub(super) fn sized(self, size: u32, what: &'static str) -> Result<&'a [u8], WireError> {
        match usize::try_from(size) {
            Ok(size) if size == self.0.len() => Ok(self.0),
            _ => Err(WireError::Value { what }),
        }
    }

    /// A string that NUL ends, without it.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.ok_or(WireError::Short { what })?;
        let (string, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(string)
    }

    /// The name of a file. `.` and `..` are names here: what is not allowed to be called so the engine
    /// says.
    pub(super) fn name(&mut self) -> Result<&'a [u8], WireError> {
        let name = self.string("a name").map_err(|_| WireError::Name)?;
        if name.len() > NAME_MAX {
            return Err(WireError::NameTooLong { len: name.len() });
        }
        if name.is_empty() || name.contains(&b'/') {
            return Err(WireError::Name);
        }
        Ok(name)
    }

    /// The name of an extended attribute.
    pub(super) fn xattr_name(&mut self) -> Result<&'a [u8], WireError> {
        let name = self.string("a name").map_err(|_| WireError::Name)?;
        match name.len() {
            0 => Err(WireError::Name),
            1..=NAME_MAX => Ok(name),
            len => Err(WireError::NameTooLong { len }),
        }
    }

    /// Nothing may follow what ended with a name or a string.
    pub(super) fn end(self) -> Result<(), WireError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(WireError::Name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_to_255_bytes_without_slash_and_ended_by_nul() {
        let name = |bytes: &[u8]| Fields::new(bytes).name().map(<[u8]>::to_vec);
        assert_eq!(name(b"a\0rest"), Ok(b"a".to_vec()));
        assert_eq!(name(b"\xff\n\0"), Ok(b"\xff\n".to_vec()));
        assert_eq!(name(b"..\0"), Ok(b"..".to_vec()));
        for bad in [&b""[..], b"a", b"\0", b"a/b\0", b"/\0"] {
            assert_eq!(name(bad), Err(WireError::Name), "{bad:?}");
        }
        let long = [&[b'n'; 256][..], b"\0"].concat();
        assert_eq!(name(&long[1..]), Ok(vec![b'n'; 255]));
        assert_eq!(name(&long), Err(WireError::NameTooLong { len: 256 }));
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let mut fields = Fields::new(&[1, 0, 2, 0, 0, 0, 9]);
        assert_eq!(fields.u16("a"), Ok(1));
        assert_eq!(fields.u32("b"), Ok(2));
        assert_eq!(fields.u64("c"), Err(WireError::Short { what: "c" }));
        assert_eq!(fields.skip(2, "d"), Err(WireError::Short { what: "d" }));
        assert_eq!(fields.rest(), [9]);
        assert_eq!(fields.sized(1, "e"), Ok(&[9][..]));
        assert_eq!(
            fields.sized(u32::MAX, "e"),
            Err(WireError::Value { what: "e" })
        );
    }
}
