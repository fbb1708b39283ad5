//! A small seeded generator (xorshift64*): the same seed gives the same test on every machine.

/// Pseudo-random numbers from one seed. Not for anything secret.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for `seed`; any value will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // One splitmix64 step spreads small seeds and cannot give the fixed point 0.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    /// The seed in `$FLOE_TEST_SEED`, or `default`. Print it with a failure.
    ///
    /// # Panics
    /// When the variable is not a number.
    #[must_use]
    pub fn seed_from_env(default: u64) -> u64 {
        match std::env::var("FLOE_TEST_SEED") {
            Ok(text) => text.parse().expect("FLOE_TEST_SEED is a number"),
            Err(_) => default,
        }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no modulo bias worth the name at these bounds.
        u64::try_from((u128::from(self.bits()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// An index into something of `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True once in `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.bits().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_two_seeds_differ() {
        assert_eq!(Random::new(7).bytes(100), Random::new(7).bytes(100));
        assert_ne!(Random::new(0).bytes(100), Random::new(1).bytes(100));
    }

    #[test]
    fn every_value_below_a_bound_turns_up_and_none_above() {
        let mut random = Random::new(3);
        let mut seen = [0u32; 10];
        for _ in 0..1000 {
            seen[random.index(10)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
