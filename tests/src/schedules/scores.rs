//! Keys and values with known scores and budgets: blocks of `keys` keys, for queries near one and [`super::scored`].

use elsa_core::random::Random;

/// Creates keys and values in which block 0 weighs one, and each of `blocks` others an equal part of `share` times
/// `budget`, in one of its keys. Values are as far from those of block 0 as `D` assumes: 1 in block 0, and −1 in the
/// others.
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

/// Creates `count` keys whose scores occasionally rise from block to block by three times `step`, and otherwise fall by
/// it; within a block they scatter. Values are around three.
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

/// Creates keys and values in which block 1 fits a budget of 0.1, and so does block 3, relative to a reference twenty
/// bits higher; relative to that of block 0 it would not.
#[must_use]
pub fn rising_once(keys: usize) -> [Vec<f32>; 2] {
    let mut k = vec![-100.0f32; 4 * keys];
    for (block, weight) in [1.0, 0.05, 1_048_576.0, 0.09 * 1_048_576.0].into_iter().enumerate() {
        k[block * keys + 5] = f32::log2(weight);
    }
    let v = (0..k.len()).map(|j| (j / keys + 1) as f32).collect();
    [k, v]
}

/// Creates queries, keys and values in which one of `blocks` blocks weighs its number of keys relative to the reference
/// zero. The others weigh so little, by different amounts in each row, that all of them fit a budget of a half.
#[must_use]
pub fn little_beside_one(keys: usize, blocks: usize, rows: usize) -> [Vec<f32>; 3] {
    let q = (0..rows).map(|i| 1.0 + i as f32 / 61.0).collect();
    let k: Vec<f32> =
        (0..blocks * keys).map(|j| if j < keys { 0.0 } else { -7.0 - (j % 7) as f32 }).collect();
    let v = (0..k.len()).map(|j| (j % 5) as f32).collect();
    [q, k, v]
}
