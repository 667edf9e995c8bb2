//! Generates pseudo-random numbers that are the same on every machine, for tests, examples and benchmarks.

/// A SplitMix64 generator (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the generator with seed `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a whole number below `n`, which must not be zero.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a number that is uniform in 0 ≤ x < 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number that is uniform in −1 ≤ x < 1.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Returns a number with mean zero, variance one and a bell-shaped distribution: the sum of four uniform numbers.
    pub fn normal(&mut self) -> f32 {
        /// √3, which makes the variance of the sum one.
        const SCALE: f64 = 1.732_050_807_568_877_2;
        let sum: f64 = (0..4).map(|_| self.unit() - 0.5).sum();
        (sum * SCALE) as f32
    }
}

/// Returns `count` numbers that are uniform in −1 ≤ x < 1, from a generator with seed `seed`.
pub fn noise(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    let mut random = Random::new(seed);
    (0..count).map(move |_| random.signed())
}
