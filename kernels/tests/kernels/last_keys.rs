//! Tests that a score depends neither on the number of keys after it nor on the kernel's knowledge that a bias masks no
//! key.

use super::noise;
use elsa_core::attention::plan::KeyLayout;
use elsa_kernels::attention::{Ahead, Block, Kernel, Tile};
use elsa_kernels::registry::ATTENTION;

/// The keys of a test, in rows and in the layout of the kernel.
struct Keys {
    d: usize,
    data: Vec<f32>,
}

impl Keys {
    fn of(kernel: &Kernel, rows: &[f32], count: usize, d: usize) -> Keys {
        let KeyLayout::Panels(r) = kernel.spec.keys else {
            return Keys { d, data: rows[..count * d].to_vec() };
        };
        let mut data = vec![0.0; count.next_multiple_of(r) * d];
        // SAFETY: the kernel is present; there are `count` rows of `d` values, and room for whole panels.
        unsafe { (kernel.pack)(rows.as_ptr(), d, count, d, data.as_mut_ptr()) }
        Keys { d, data }
    }

    /// Returns the bits of the scores of `count` keys, and of the largest score of each row.
    fn scores(
        &self,
        kernel: &Kernel,
        vectors: usize,
        query: &[f32],
        count: usize,
        (bias, masks): (Option<&[f32]>, bool),
    ) -> [Vec<u32>; 2] {
        let w = vectors * kernel.spec.lanes;
        let (mut pad, mut top) = (vec![0.0f32; 8 * self.d], vec![0.0f32; w]);
        let mut scores = vec![0.0f32; (count + 16) * w];
        let tile = Tile {
            query: query.as_ptr(),
            weights: scores.as_mut_ptr(),
            pad: pad.as_mut_ptr(),
            head_dim: self.d,
            value_dim: 4,
        };
        let block = Block {
            keys: self.data.as_ptr(),
            key_stride: self.d,
            values: std::ptr::null(),
            value_stride: 4,
            count,
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            shares_bias: false,
            masks,
            ahead: Ahead::NOTHING,
            largest: 0.0,
            cap: 0.0,
        };
        let entries = &kernel.entries[vectors - 1];
        // SAFETY: the kernel is present. Tile and block cover what their contracts require, scores and maxima have room,
        // and scores need no values.
        unsafe { (entries.scores)(&tile, &block, scores.as_mut_ptr(), top.as_mut_ptr()) }
        scores.truncate(count * w);
        [scores, top].map(|found| found.iter().map(|x| x.to_bits()).collect())
    }
}

#[test]
fn the_last_keys_get_the_bits_of_earlier_keys() {
    const MOST: usize = 24;
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present() && kernel.spec.lanes > 1) {
        for vectors in 1..=kernel.spec.vectors {
            let w = vectors * kernel.spec.lanes;
            for d in [4, 8, 12, 16, 32, 64, 68, 144] {
                // Miri is slow, and checks only small tiles.
                if cfg!(miri) && d > 16 {
                    continue;
                }
                let mut query = noise(d * w, 1);
                query[..w].fill(-0.0);
                let (rows, bias) = (noise(MOST * d, 2), noise(MOST * w, 3));
                let all = Keys::of(kernel, &rows, MOST, d);
                for count in 1..=if cfg!(miri) { 10 } else { MOST } {
                    let keys = Keys::of(kernel, &rows, count, d);
                    for bias in [None, Some(&bias[..])] {
                        let name = format!("{} {vectors} {d} {count} {}", kernel.spec.name, bias.is_some());
                        let [found, top] = keys.scores(kernel, vectors, &query, count, (bias, true));
                        let [whole, _] = all.scores(kernel, vectors, &query, MOST, (bias, true));
                        assert_eq!(found, whole[..count * w], "{name}");
                        let plain = keys.scores(kernel, vectors, &query, count, (bias, false));
                        assert_eq!(plain, [found.clone(), top], "{name}, no key masked");
                        // A block may have fewer keys than were packed.
                        let [fewer, _] = all.scores(kernel, vectors, &query, count, (bias, true));
                        assert_eq!(fewer, found, "{name}, of all");
                    }
                }
            }
        }
    }
}
