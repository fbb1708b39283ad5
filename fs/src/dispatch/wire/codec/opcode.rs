//! Opcodes (`enum fuse_opcode`).

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a request asks for. Requests of other numbers are answered with `ENOSYS`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are those of linux/fuse.h")]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The opcode of a number.
            #[must_use]
            pub fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    MkNod = 8,
    MkDir = 9,
    Unlink = 10,
    RmDir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    FSync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FSyncDir = 30,
    GetLk = 31,
    SetLk = 32,
    SetLkW = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    BMap = 37,
    Destroy = 38,
    IoCtl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    FAllocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    LSeek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    SyncFs = 50,
    TmpFile = 51,
    StatX = 52,
    CopyFileRange64 = 53,
}

impl Opcode {
    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_are_the_same_both_ways() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode.number()), Some(opcode));
        }
        for number in [0, 7, 19, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::from_number(number), None);
        }
    }
}
