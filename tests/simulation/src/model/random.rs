//! Numbers from a seed: the same on every machine and with every version of every library.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of one history of a seed.
    #[must_use]
    pub fn of(seed: u64, history: u64) -> Self {
        let mut random = Self(seed ^ history.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let scaled = (u128::from(self.next()) * end as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }
}
