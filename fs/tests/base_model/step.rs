//! What is done, at random.

use proptest::prelude::*;

pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Small enough for the catalog, for one object, and too large to be copied up whole.
pub const SIZES: [usize; 5] = [0, 10, 9_000, 80_000, 300_000];

/// Something, by its place among all that could be meant.
pub type Pick = u16;

#[derive(Clone, Debug)]
pub enum Step {
    HostMake(Pick, u8, u8, u8),
    HostWrite(Pick, u8, u8),
    HostRemove(Pick),
    HostRename(Pick, Pick, u8),
    HostLink(Pick, Pick, u8),
    List(u8, Pick),
    Read(u8, Pick),
    Write(u8, Pick, u16, u8),
    Truncate(u8, Pick, u8),
    Make(u8, Pick, u8, bool),
    Remove(u8, Pick),
    Rename(u8, Pick, Pick, u8),
    Link(u8, Pick, Pick, u8),
    Snapshot(u8),
    Fork(u8),
    Adopt,
    Compare(u8),
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step as S;
    let step = prop_oneof![
        4 => any::<(Pick, u8, u8, u8)>().prop_map(|(a, b, c, d)| S::HostMake(a, b, c, d)),
        2 => any::<(Pick, u8, u8)>().prop_map(|(a, b, c)| S::HostWrite(a, b, c)),
        2 => any::<Pick>().prop_map(S::HostRemove),
        2 => any::<(Pick, Pick, u8)>().prop_map(|(a, b, c)| S::HostRename(a, b, c)),
        2 => any::<(Pick, Pick, u8)>().prop_map(|(a, b, c)| S::HostLink(a, b, c)),
        4 => any::<(u8, Pick)>().prop_map(|(a, b)| S::List(a, b)),
        4 => any::<(u8, Pick)>().prop_map(|(a, b)| S::Read(a, b)),
        4 => any::<(u8, Pick, u16, u8)>().prop_map(|(a, b, c, d)| S::Write(a, b, c, d)),
        2 => any::<(u8, Pick, u8)>().prop_map(|(a, b, c)| S::Truncate(a, b, c)),
        3 => any::<(u8, Pick, u8, bool)>().prop_map(|(a, b, c, d)| S::Make(a, b, c, d)),
        3 => any::<(u8, Pick)>().prop_map(|(a, b)| S::Remove(a, b)),
        3 => any::<(u8, Pick, Pick, u8)>().prop_map(|(a, b, c, d)| S::Rename(a, b, c, d)),
        2 => any::<(u8, Pick, Pick, u8)>().prop_map(|(a, b, c, d)| S::Link(a, b, c, d)),
        1 => any::<u8>().prop_map(S::Snapshot),
        1 => any::<u8>().prop_map(S::Fork),
        1 => Just(S::Adopt),
        1 => any::<u8>().prop_map(S::Compare),
    ];
    proptest::collection::vec(step, 1..60)
}
