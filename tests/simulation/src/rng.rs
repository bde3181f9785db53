//! Choices drawn from a seed: the same on every machine and in every release.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The choices of one step of one history. Each step has its own, so that what an earlier step drew does not matter.
    #[must_use]
    pub fn of(seed: u64, history: u64, step: u64) -> Self {
        let mut rng = Self(seed);
        for part in [history, step] {
            rng.0 = rng.bits() ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        rng
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of 0..`end`; 0 where there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.bits() % end).unwrap_or(0)
    }

    /// One of `from`..=`to`.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        let span = to.abs_diff(from).saturating_add(1);
        from.saturating_add_unsigned(self.bits() % span)
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.bits() % 100 < percent
    }

    /// One of them; none where there is none.
    pub fn pick<T: Copy>(&mut self, some: &[T]) -> Option<T> {
        some.get(self.below(some.len())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_step_draws_the_same_whatever_was_drawn_before() {
        let draws = |seed, history, step| {
            let mut rng = Rng::of(seed, history, step);
            [rng.bits(), rng.bits()]
        };
        assert_eq!(draws(1, 2, 3), draws(1, 2, 3));
        for other in [draws(2, 2, 3), draws(1, 3, 3), draws(1, 2, 4), draws(2, 1, 3)] {
            assert_ne!(draws(1, 2, 3), other);
        }
        assert_eq!(Rng::of(1, 2, 3).bits(), 14_393_391_486_003_797_016, "a seed of an older release draws the same");
    }
}
