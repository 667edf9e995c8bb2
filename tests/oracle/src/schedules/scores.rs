//! Keys and values with known scores and budgets, in blocks of `keys` keys, for use with [`super::scored`] and queries
//! near one.

use elsa_core::random::Random;

/// Creates keys and values for `blocks + 1` blocks. In each block, a single key has all the weight: 1 in block 0, and equal
/// parts of `share · budget / (1 − budget)` in the other blocks. Values are 1 in block 0 and −1 in the others: the error
/// bound for skipped weights `D` assumes this distance between values.
#[must_use]
pub fn equal_parts(keys: usize, blocks: usize, share: f64, budget: f32) -> [Vec<f32>; 2] {
    let budget = f64::from(budget);
    let each = share * budget / (1.0 - budget) / blocks as f64;
    let mut k = vec![-100.0f32; keys * (blocks + 1)];
    k[3] = 0.0;
    (1..=blocks).for_each(|n| k[n * keys + n % keys] = each.log2() as f32);
    let v = (0..k.len()).map(|j| if j < keys { 1.0 } else { -1.0 }).collect();
    [k, v]
}

/// Creates `count` keys and values. Compared with the previous block, the scores of a block are higher by three times
/// `step` in a third of the cases, and lower by `step` in the other cases. Within a block the scores scatter. Values
/// scatter around three.
#[must_use]
pub fn rising(random: &mut Random, keys: usize, count: usize, step: f32) -> [Vec<f32>; 2] {
    let mut level = 0.0f32;
    let k = (0..count)
        .map(|j| {
            if j % keys == 0 {
                level += if random.below(3) == 0 { step * 3.0 } else { -step };
            }
            level + 2.0 * random.normal()
        })
        .collect();
    [k, (0..count).map(|_| random.normal() + 3.0).collect()]
}

/// Creates keys and values for four blocks. Blocks 1 and 3 fit a budget of 0.1. Block 3 fits it only relative to block 2,
/// whose reference is twenty bits above that of block 0.
#[must_use]
pub fn rising_once(keys: usize) -> [Vec<f32>; 2] {
    let mut k = vec![-100.0f32; 4 * keys];
    for (block, weight) in [1.0, 0.05, 1_048_576.0, 0.09 * 1_048_576.0].into_iter().enumerate() {
        k[block * keys + 5] = f32::log2(weight);
    }
    let v = (0..k.len()).map(|j| (j / keys + 1) as f32).collect();
    [k, v]
}

/// Creates queries, keys and values for `blocks` blocks. All scores of block 0 are zero, so that its weight, relative
/// to a reference of zero, is its number of keys. The other blocks have small weights that differ between rows; all of
/// them together fit a budget of one half.
#[must_use]
pub fn little_beside_one(keys: usize, blocks: usize, rows: usize) -> [Vec<f32>; 3] {
    let q = (0..rows).map(|i| 1.0 + i as f32 / 61.0).collect();
    let k: Vec<f32> =
        (0..blocks * keys).map(|j| if j < keys { 0.0 } else { -7.0 - (j % 7) as f32 }).collect();
    let v = (0..k.len()).map(|j| (j % 5) as f32).collect();
    [q, k, v]
}
