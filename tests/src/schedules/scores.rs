//! Keys and values whose scores and budgets are known beforehand: blocks of `keys` keys, for queries near one and
//! [`super::scored`].

use crate::random::Random;

/// Block 0 weighs one, and each of `blocks` others an equal part of `share` times `budget`, in one of its keys. Values are
/// as far from those of block 0 as `D` supposes: 1 in block 0, and −1.
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

/// `count` keys whose scores rise from block to block now and then, by three times `step`, and else fall by it; within a
/// block they scatter. Values lie around three.
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
