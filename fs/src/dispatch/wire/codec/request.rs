//! Requests: the header, and the body as an [`Operation`].

use super::fields::Fields;
use super::operation::Operation;
use super::{IN_HEADER, MESSAGE_MAX, Opcode, WireError};

/// What was agreed on that changes the layout of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR has its longer form (`FUSE_SETXATTR_EXT`).
    pub setxattr_ext: bool,
}

/// `struct fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the message in bytes, this header included.
    pub len: u32,
    /// Number of the operation; see [`Opcode::from_number`].
    pub opcode: u32,
    /// The sender's number of the request, which the answer carries.
    pub unique: u64,
    /// What the operation is done to.
    pub node: u64,
    /// File-system user id of whoever asks, as the guest says.
    pub uid: u32,
    /// File-system group id of whoever asks, as the guest says.
    pub gid: u32,
    /// Length of the extensions at the end of the body, in units of 8 bytes.
    pub extensions: u16,
}

impl Header {
    /// Reads the header of a message.
    ///
    /// # Errors
    /// [`WireError::Short`] if the message is shorter than a header.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        const WHAT: &str = "the header";
        let mut fields = Fields::new(message);
        let (len, opcode) = (fields.u32(WHAT)?, fields.u32(WHAT)?);
        let (unique, node) = (fields.u64(WHAT)?, fields.u64(WHAT)?);
        let (uid, gid) = (fields.u32(WHAT)?, fields.u32(WHAT)?);
        // The process id is one of the guest's, and says nothing here.
        fields.skip(4, WHAT)?;
        let extensions = fields.u16(WHAT)?;
        fields.skip(2, WHAT)?;
        Ok(Self {
            len,
            opcode,
            unique,
            node,
            uid,
            gid,
            extensions,
        })
    }

    /// Its opcode, if it is one that is known.
    #[must_use]
    pub fn known_opcode(&self) -> Option<Opcode> {
        Opcode::from_number(self.opcode)
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who asks, and about what.
    pub header: Header,
    /// What for.
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Takes the body of a message apart, whose header was read already. Bytes that follow a structure of fixed length are passed over: a
    /// later kernel may send a longer one. Names, and what has its length beside it, must end where the
    /// message does.
    ///
    /// # Errors
    /// [`WireError`] says what is wrong with it.
    pub fn parse(header: Header, body: &'a [u8], dialect: Dialect) -> Result<Self, WireError> {
        let found = IN_HEADER + body.len();
        if usize::try_from(header.len) != Ok(found) {
            return Err(WireError::Length {
                said: header.len,
                found,
            });
        }
        if header.len > MESSAGE_MAX {
            return Err(WireError::Value {
                what: "the length of the message",
            });
        }
        // Extensions (security contexts, groups) are not asked for, and passed over where they come.
        let extensions = usize::from(header.extensions) * 8;
        let end = body.len().checked_sub(extensions);
        let body = end
            .and_then(|end| body.get(..end))
            .ok_or(WireError::Extensions {
                len: extensions,
                body: body.len(),
            })?;
        let operation = match header.known_opcode() {
            Some(opcode) => Operation::parse(opcode, Fields::new(body), dialect)?,
            None => Operation::Unserved,
        };
        Ok(Self { header, operation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(message: &[u8]) -> Result<Request<'_>, WireError> {
        let header = Header::parse(message)?;
        Request::parse(header, &message[IN_HEADER..], Dialect::default())
    }

    fn message(opcode: u32, extensions: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(IN_HEADER + body.len()).unwrap();
        let mut message = Vec::new();
        message.extend(len.to_le_bytes());
        message.extend(opcode.to_le_bytes());
        message.extend(7_u64.to_le_bytes());
        message.extend(1_u64.to_le_bytes());
        for word in [1000_u32, 100, 4242] {
            message.extend(word.to_le_bytes());
        }
        message.extend(extensions.to_le_bytes());
        message.extend([0, 0]);
        message.extend(body);
        message
    }

    #[test]
    fn a_header_is_read_field_by_field() {
        let message = message(Opcode::Lookup.number(), 0, b"name\0");
        let request = parse(&message).unwrap();
        let expected = Header {
            len: 45,
            opcode: 1,
            unique: 7,
            node: 1,
            uid: 1000,
            gid: 100,
            extensions: 0,
        };
        assert_eq!(request.header, expected);
        assert!(matches!(request.operation, Operation::Lookup { name } if name == b"name"));
    }

    #[test]
    fn extensions_are_passed_over_and_cannot_be_longer_than_the_body() {
        let body = [&b"name\0"[..], &[9; 16]].concat();
        let good = message(1, 2, &body);
        let request = parse(&good).unwrap();
        assert!(matches!(request.operation, Operation::Lookup { name } if name == b"name"));
        for too_many in [3, u16::MAX] {
            let bad = message(1, too_many, &body);
            let error = parse(&bad).unwrap_err();
            assert!(matches!(error, WireError::Extensions { .. }), "{error}");
        }
    }

    #[test]
    fn a_length_that_is_not_the_messages_is_refused() {
        let mut message = message(1, 0, b"name\0");
        message.push(0);
        assert_eq!(
            parse(&message).unwrap_err(),
            WireError::Length {
                said: 45,
                found: 46
            }
        );
        assert!(parse(&message[..39]).is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn unknown_opcodes_are_no_error_of_the_message() {
        let message = message(4096, 0, b"");
        let request = parse(&message).unwrap();
        assert!(matches!(request.operation, Operation::Unserved));
    }
}
