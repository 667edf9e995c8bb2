//! Creates the generator of the random numbers that cases contain.

use elsa_core::random::Random;

/// Returns a generator whose numbers depend on `seed` alone.
#[must_use]
pub fn seeded(seed: u64) -> Random {
    Random::new(seed ^ 0x6a09_e667_f3bc_c908)
}
