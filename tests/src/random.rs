//! A small seeded generator, so that a case depends only on its parameters.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that depends only on `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed ^ 0x6a09_e667_f3bc_c908)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in 0 ≤ x < 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an integer below `n`, which must not be zero.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a bell-shaped number of mean zero and variance one: the sum of four uniform numbers.
    pub fn normal(&mut self) -> f32 {
        let sum: f64 = (0..4).map(|_| self.unit() - 0.5).sum();
        (sum * 3f64.sqrt()) as f32
    }
}
