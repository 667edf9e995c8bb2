//! Tests each micro-kernel in the registry that this machine can execute. Compares its exponential with a computation in
//! f64, the bits of its merge with the definition, and its conversions with those of the crate `half`. Also checks its
//! declared properties.

use elsa_core::attention::plan::KeyLayout;
use elsa_core::profile::InstructionSet;
use elsa_core::state::State;
use elsa_kernels::attention::{Ahead, Block, Kernel, RowStep, Sums, Tile};
use elsa_kernels::registry::{ATTENTION, BACKWARD, backward_of};

/// Returns the kernels that this machine can execute. Fails if an instruction set named by `ELSA_REQUIRE` is missing.
fn present() -> Vec<&'static Kernel> {
    let found: Vec<_> = ATTENTION.iter().copied().filter(|k| k.is_present()).collect();
    if let Ok(required) = std::env::var("ELSA_REQUIRE") {
        for name in required.split(',').filter(|n| !n.is_empty()) {
            assert!(found.iter().any(|k| k.spec.set.name() == name), "{name} is required and absent");
        }
    }
    assert!(found.iter().any(|k| k.spec.set == InstructionSet::Scalar));
    println!("kernels: {:?}", found.iter().map(|k| k.spec.name).collect::<Vec<_>>());
    found
}

fn exp2(kernel: &Kernel, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    // SAFETY: the kernel is present, and both slices have `x.len()` values.
    unsafe { (kernel.primitives.exp2)(x.as_ptr(), x.len(), y.as_mut_ptr()) }
    y
}

#[test]
fn exponential_of_nan_is_nan_for_every_payload() {
    for kernel in present() {
        let x: Vec<f32> =
            (0..23).flat_map(|b| [0x7fc0_0000 | 1 << b, 0xffc0_0000 | 1 << b]).map(f32::from_bits).collect();
        for (x, y) in x.iter().zip(exp2(kernel, &x)) {
            assert!(y.is_nan(), "{}: {:08x} gives {y}", kernel.spec.name, x.to_bits());
        }
    }
}

#[test]
fn merge_is_the_definition_bit_by_bit() {
    const DIM: usize = 4;
    let references = [f32::NEG_INFINITY, -300.0, -126.0, -1.0, 0.0, 1.0, 7.0, 125.0, 126.0, 127.0, 4096.0];
    for kernel in present() {
        for vectors in 1..=kernel.spec.vectors {
            let w = vectors * kernel.spec.lanes;
            for (a, b) in references.iter().flat_map(|a| references.map(|b| (*a, b))) {
                let state = |m: f32, i: usize| {
                    let empty = m == f32::NEG_INFINITY;
                    let x = |n: usize| if empty { 0.0 } else { (n * 37 + i * 11) as f32 / 8.0 - 5.0 };
                    State { m, s: x(1).abs(), w: [x(2), x(3), x(4), x(5)] }
                };
                let lay = |m: f32, shift: usize| {
                    let mut flat = vec![0.0f32; (2 + DIM) * w];
                    for i in 0..w {
                        let s = state(m, i + shift);
                        (flat[i], flat[w + i]) = (s.m, s.s);
                        for x in 0..DIM {
                            flat[(2 + x) * w + i] = s.w[x];
                        }
                    }
                    flat
                };
                let (mut earlier, mut later) = (lay(a, 0), lay(b, 5));
                let sums = |x: &mut Vec<f32>| {
                    let p = x.as_mut_ptr();
                    Sums { m: p, s: p.wrapping_add(w), w: p.wrapping_add(2 * w) }
                };
                // SAFETY: the kernel is present; both arrays contain a state of `DIM` dims for `w` rows.
                unsafe { (kernel.entries[vectors - 1].merge)(&sums(&mut earlier), &sums(&mut later), DIM) }
                for i in 0..w {
                    let mut want = state(a, i);
                    want.merge(&state(b, i + 5));
                    let got = [earlier[i], earlier[w + i], earlier[2 * w + i], earlier[(1 + DIM) * w + i]];
                    let want = [want.m, want.s, want.w[0], want.w[DIM - 1]];
                    assert_eq!(
                        got.map(f32::to_bits),
                        want.map(f32::to_bits),
                        "{} {a} {b} {i}",
                        kernel.spec.name
                    );
                }
            }
        }
    }
}

#[test]
fn f16_and_bf16_widen_exactly() {
    for kernel in present() {
        for n in [0usize, 1, 3, 4, 5, 15, 16, 17, 33] {
            let bits: Vec<u16> = (0..n as u16).map(|i| i.wrapping_mul(2047).wrapping_add(5)).collect();
            let mut y = vec![0.0f32; n];
            // SAFETY: the kernel is present; both slices have one row of `n` elements.
            unsafe { (kernel.primitives.widen_f16)(bits.as_ptr(), n, 1, n, y.as_mut_ptr(), n) }
            for (b, y) in bits.iter().zip(&y) {
                let want = half::f16::from_bits(*b).to_f32();
                assert!(y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()), "{b:04x}");
            }
            // SAFETY: as above.
            unsafe { (kernel.primitives.widen_bf16)(bits.as_ptr(), n, 1, n, y.as_mut_ptr(), n) }
            for (b, y) in bits.iter().zip(&y) {
                let want = half::bf16::from_bits(*b).to_f32();
                assert!(y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()), "{b:04x}");
            }
        }
        // The bits are those of every f16 number; Miri checks a selection.
        let bits: Vec<u16> = (0..=u16::MAX).step_by(if cfg!(miri) { 997 } else { 1 }).collect();
        let mut y = vec![0.0f32; bits.len()];
        // SAFETY: as above.
        unsafe { (kernel.primitives.widen_f16)(bits.as_ptr(), 0, 1, bits.len(), y.as_mut_ptr(), 0) }
        for (b, y) in bits.iter().zip(&y) {
            let want = half::f16::from_bits(*b).to_f32();
            assert!(y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()), "{b:04x}: {y} {want}");
        }
    }
}

/// Checks that rows with gaps between them are converted element by element, and that nothing is written to the gaps.
#[test]
fn rows_are_converted_where_they_lie() {
    const LEFT: f32 = 77.0;
    for kernel in present() {
        for (rows, dim, stride, to_stride) in [(0, 5, 5, 5), (1, 3, 3, 4), (3, 16, 20, 16), (5, 33, 33, 40)] {
            let value = |row: usize, i: usize| (row * stride + i) as f32 * 0.5;
            let bits: Vec<u16> =
                (0..rows * stride).map(|i| half::f16::from_f32(i as f32 * 0.5).to_bits()).collect();
            let mut wide = vec![LEFT; rows * to_stride];
            // SAFETY: the kernel is present; rows are within both slices.
            unsafe {
                (kernel.primitives.widen_f16)(bits.as_ptr(), stride, rows, dim, wide.as_mut_ptr(), to_stride)
            }
            for (at, got) in wide.iter().enumerate() {
                let (row, i) = (at / to_stride, at % to_stride);
                assert_eq!(
                    *got,
                    if i < dim { value(row, i) } else { LEFT },
                    "{} {row} {i}",
                    kernel.spec.name
                );
            }
            let tight: Vec<f32> = (0..rows * dim).map(|i| i as f32 * 0.5).collect();
            for (narrow, left) in
                [(kernel.primitives.narrow_f16, 0x1234u16), (kernel.primitives.narrow_bf16, 0x4321)]
            {
                let mut y = vec![left; rows * to_stride];
                // SAFETY: as above.
                unsafe { narrow(tight.as_ptr(), rows, dim, y.as_mut_ptr(), to_stride) }
                for (at, got) in y.iter().enumerate() {
                    let (row, i) = (at / to_stride, at % to_stride);
                    let x = (row * dim + i) as f32 * 0.5;
                    let want = match left {
                        _ if i >= dim => left,
                        0x1234 => half::f16::from_f32(x).to_bits(),
                        _ => half::bf16::from_f32(x).to_bits(),
                    };
                    assert_eq!(*got, want, "{} {row} {i}", kernel.spec.name);
                }
            }
        }
    }
}

#[test]
fn f32_narrows_to_the_nearest() {
    // The values are every f16 number, the midpoints between neighbours, the f32 values adjacent to midpoints, special
    // values and random ones.
    let mut x: Vec<f32> = Vec::new();
    let stride = if cfg!(miri) { 997 } else { 1 };
    for bits in (0..0x7c00u16).step_by(stride) {
        let (a, b) = (half::f16::from_bits(bits).to_f32(), half::f16::from_bits(bits + 1).to_f32());
        let middle = if b.is_finite() { (a + b) / 2.0 } else { 65520.0 };
        for y in [a, middle, middle.next_up(), middle.next_down()] {
            x.extend([y, -y]);
        }
    }
    x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, 3.4e38, -0.0]);
    x.extend((0..100_000u32).step_by(stride).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))));
    for kernel in present() {
        for x in [&x[..], &x[..5], &x[..1], &x[..0], &x[3..36]] {
            let mut y = vec![0u16; x.len()];
            // SAFETY: the kernel is present; both slices have `x.len()` elements.
            unsafe { (kernel.primitives.narrow_f16)(x.as_ptr(), 1, x.len(), y.as_mut_ptr(), 0) }
            for (x, y) in x.iter().zip(&y) {
                let (got, want) = (half::f16::from_bits(*y), half::f16::from_f32(*x));
                assert!(
                    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                    "{x:e}: {got} {want}"
                );
            }
            // SAFETY: as above.
            unsafe { (kernel.primitives.narrow_bf16)(x.as_ptr(), 1, x.len(), y.as_mut_ptr(), 0) }
            for (x, y) in x.iter().zip(&y) {
                let (got, want) = (half::bf16::from_bits(*y), half::bf16::from_f32(*x));
                assert!(
                    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                    "{x:e}: {got} {want}"
                );
            }
        }
    }
}

/// Runs one step of each kernel on tiles of several sizes. The tile's data end where their allocations end, so that
/// AddressSanitizer and valgrind detect a read past the end. Also checks that a masked NaN in a key or a value reaches
/// no output.
#[test]
fn a_step_reads_what_it_may_and_no_mask_leaks() {
    for kernel in present() {
        for vectors in 1..=kernel.spec.vectors {
            for (d, dv) in [(4, 4), (8, 12), (64, 64), (68, 20), (128, 8), (192, 100)] {
                for count in [1usize, 2, 7, 8, 9, 63, 64] {
                    // Miri is slow, and checks only the small tiles.
                    if cfg!(miri) && (d > 8 || count > 9) {
                        continue;
                    }
                    step_once(kernel, vectors, d, dv, count);
                }
            }
        }
    }
}

fn step_once(kernel: &Kernel, vectors: usize, d: usize, dv: usize, count: usize) {
    let w = vectors * kernel.spec.lanes;
    let value = |a: usize, b: usize| ((a * 31 + b * 17) % 23) as f32 / 16.0 - 0.7;
    let query: Vec<f32> = (0..d * w).map(|i| value(i / w, i % w) / 8.0).collect();
    let mut keys: Vec<f32> = (0..count * d).map(|i| value(i / d, i % d + 3)).collect();
    let mut values: Vec<f32> = (0..count * dv).map(|i| value(i / dv + 5, i % dv)).collect();
    // The last key is masked for even rows. If there are other keys, the last key contains NaN, and the last key's
    // value contains infinity and NaN.
    let masked = count - 1;
    let poison = count > 1;
    if poison {
        keys[masked * d] = f32::NAN;
        values[masked * dv] = f32::INFINITY;
        values[masked * dv + dv - 1] = f32::NAN;
    }
    let bias: Vec<f32> = (0..count * w)
        .map(|i| if i / w == masked && (i % w).is_multiple_of(2) { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    let panels = match kernel.spec.keys {
        KeyLayout::Rows => None,
        KeyLayout::Panels(r) => {
            let mut packed = vec![0.0; count.next_multiple_of(r) * d];
            // SAFETY: the kernel is present; there are `count` rows of `d` values, and room for whole panels.
            unsafe { (kernel.pack)(keys.as_ptr(), d, count, d, packed.as_mut_ptr()) }
            Some(packed)
        }
    };
    let mut weights = vec![0.0; (count + 16) * w];
    let mut pad = vec![0.0; 8 * d];
    let mut state = vec![f32::NAN; (2 + dv) * w];
    let p = state.as_mut_ptr();
    let sums = Sums { m: p, s: p.wrapping_add(w), w: p.wrapping_add(2 * w) };
    let tile = Tile {
        query: query.as_ptr(),
        weights: weights.as_mut_ptr(),
        pad: pad.as_mut_ptr(),
        head_dim: d,
        value_dim: dv,
    };
    let block = Block {
        keys: panels.as_ref().map_or(keys.as_ptr(), |x| x.as_ptr()),
        key_stride: d,
        values: values.as_ptr(),
        value_stride: dv,
        count,
        bias: bias.as_ptr(),
        shares_bias: false,
        masks: true,
        ahead: Ahead::NOTHING,
        largest: values.iter().fold(0.0, |largest, x| x.abs().max(largest)),
        cap: 0.0,
    };
    let entries = &kernel.entries[vectors - 1];
    // SAFETY: the kernel is present, and all pointers are valid as the contracts of tile, block and sums require.
    unsafe {
        (entries.step)(&tile, &block, &sums, true);
        (entries.finish)(&sums, dv);
    }
    for i in 0..w {
        let attended: Vec<usize> = (0..count).filter(|j| bias[j * w + i] == 0.0).collect();
        let poisoned = poison && attended.contains(&masked);
        let score =
            |j: usize| (0..d).map(|x| f64::from(query[x * w + i]) * f64::from(keys[j * d + x])).sum::<f64>();
        let p: Vec<f64> = attended.iter().map(|j| score(*j).exp2()).collect();
        let total: f64 = p.iter().sum();
        for x in 0..dv {
            let got = f64::from(state[(2 + x) * w + i]);
            if poisoned {
                assert!(got.is_nan(), "{} row {i} dim {x}: {got}", kernel.spec.name);
            } else if attended.is_empty() {
                assert!(got == 0.0, "{} row {i}: {got}", kernel.spec.name);
            } else {
                let term = |(j, p): (&usize, &f64)| p / total * f64::from(values[j * dv + x]);
                let want: f64 = attended.iter().zip(&p).map(term).sum();
                let size: f64 = attended.iter().zip(&p).map(|jp| term(jp).abs()).sum();
                // A score, below 8 in magnitude, has the errors of `d` roundings, and a sum those of `count` roundings.
                let bound = (8.0 * d as f64 + count as f64 + 16.0) * 6e-8 * size;
                assert!((got - want).abs() <= bound, "{} row {i} dim {x}: {got} {want}", kernel.spec.name);
            }
        }
    }
}

/// Checks that rows that take a step together get the bits that each gets alone, and that the dot products of several
/// keys at once have the bits of single ones.
#[test]
fn rows_together_have_the_bits_of_rows_alone() {
    const MOST: usize = 5;
    for kernel in present() {
        let Some(together) = kernel.together else {
            assert_eq!(kernel.spec.together, 1, "{}", kernel.spec.name);
            continue;
        };
        assert!((2..=MOST).contains(&kernel.spec.together), "{}", kernel.spec.name);
        for (d, dv, count) in [(4, 4, 1), (8, 20, 6), (68, 100, 63), (320, 128, 64)] {
            // Miri is slow, and checks only the small tiles.
            if cfg!(miri) && count > 6 {
                continue;
            }
            let (keys, values) = (super::noise(count * d, 3), super::noise(count * dv, 4));
            let queries = super::noise(MOST * d, 5);
            let mut bias = vec![0.0; count];
            bias[count / 2] = f32::NEG_INFINITY;
            for (rows, bias) in (1..=MOST).flat_map(|rows| [(rows, std::ptr::null()), (rows, bias.as_ptr())])
            {
                let block = Block {
                    keys: keys.as_ptr(),
                    key_stride: d,
                    values: values.as_ptr(),
                    value_stride: dv,
                    count,
                    bias,
                    shares_bias: true,
                    masks: true,
                    ahead: Ahead::NOTHING,
                    largest: 1.0,
                    cap: 0.0,
                };
                let room = (2 + dv) + (count + 16) + 8 * d;
                let run = |step: &dyn Fn(&[RowStep])| {
                    let mut memory = vec![0.5f32; rows * room];
                    let steps: Vec<RowStep> = (0..rows)
                        .map(|row| {
                            let m = memory.as_mut_ptr().wrapping_add(row * room);
                            let weights = m.wrapping_add(2 + dv);
                            let pad = weights.wrapping_add(count + 16);
                            let query = queries.as_ptr().wrapping_add(row * d);
                            let tile = Tile { query, weights, pad, head_dim: d, value_dim: dv };
                            let sums = Sums { m, s: m.wrapping_add(1), w: m.wrapping_add(2) };
                            RowStep { tile, sums, first: row % 2 == 0 }
                        })
                        .collect();
                    step(&steps);
                    let state = |row: usize| memory[row * room..][..2 + dv].iter().map(|x| x.to_bits());
                    (0..rows).flat_map(state).collect::<Vec<u32>>()
                };
                // SAFETY: the kernel is present, and all pointers are valid as the contracts of tile, block and sums
                // require. The rows have separate memory.
                let (all, each) = unsafe {
                    let alone =
                        |row: &RowStep| (kernel.entries[0].step)(&row.tile, &block, &row.sums, row.first);
                    (run(&|rows| together(rows, &block)), run(&|rows| rows.iter().for_each(alone)))
                };
                assert_eq!(all, each, "{} {rows} rows, {d} {dv} {count}", kernel.spec.name);
            }
            let block = |first: usize, count: usize| Block {
                keys: keys[first * d..].as_ptr(),
                key_stride: d,
                values: values.as_ptr(),
                value_stride: dv,
                count,
                bias: std::ptr::null(),
                shares_bias: false,
                masks: true,
                ahead: Ahead::NOTHING,
                largest: 1.0,
                cap: 0.0,
            };
            let (mut weights, mut pad) = (vec![0.0; count + 16], vec![0.0; 8 * d]);
            let tile = Tile {
                query: queries.as_ptr(),
                weights: weights.as_mut_ptr(),
                pad: pad.as_mut_ptr(),
                head_dim: d,
                value_dim: dv,
            };
            let mut scores = vec![0.0f32; count + 16];
            let mut score = vec![0.0f32; 1 + 16];
            // SAFETY: the kernel is present, and all pointers are valid as the contracts of tile and block require.
            unsafe {
                (kernel.entries[0].scores)(
                    &tile,
                    &block(0, count),
                    scores.as_mut_ptr(),
                    std::ptr::null_mut(),
                );
                for j in 0..count {
                    (kernel.entries[0].scores)(&tile, &block(j, 1), score.as_mut_ptr(), std::ptr::null_mut());
                    assert_eq!(scores[j].to_bits(), score[0].to_bits(), "{} {d} key {j}", kernel.spec.name);
                }
            }
        }
    }
}

#[test]
fn declarations_are_consistent() {
    let mut names = std::collections::HashSet::new();
    for kernel in ATTENTION {
        let s = &kernel.spec;
        assert!(names.insert(s.name), "{} twice", s.name);
        assert!((1..=3).contains(&s.vectors) && (1..=8).contains(&s.tile_keys) && (1..=8).contains(&s.group));
        assert!(s.name.contains(s.set.name()));
        assert!(s.name.starts_with(&format!("attention_f32_q{}k", s.lanes * s.vectors)), "{}", s.name);
        if let KeyLayout::Panels(r) = s.keys {
            assert_eq!(r, s.tile_keys);
        }
        if kernel.is_present() {
            let one = exp2(kernel, &[0.0])[0] / s.weight_scale as f32;
            assert!((one - 1.0).abs() <= 2.0 * f32::EPSILON, "{}: {one}", s.name);
        }
    }
}

#[test]
fn backward_kernels_declare_what_they_are() {
    for kernel in BACKWARD {
        let spec = &kernel.spec;
        assert!(std::ptr::eq(backward_of(spec.set).unwrap(), *kernel));
        // Products along rows process four steps at a time, and blocks consist of whole register tiles.
        assert!(spec.panel.is_multiple_of(4) && spec.rows.is_multiple_of(spec.panel), "{}", spec.name);
        assert!(spec.panel.is_multiple_of(spec.lanes) && spec.block.is_multiple_of(spec.tile_keys));
        let tile = format!("backward_f32_q{}k{}__{}_exp2_", spec.rows, spec.tile_keys, spec.set.name());
        assert!(spec.name.starts_with(&tile), "{}: {tile}", spec.name);
        let twin = ATTENTION.iter().find(|k| k.spec.set == spec.set).unwrap().spec;
        assert_eq!((spec.exp2_relative, spec.weight_scale), (twin.exp2_relative, twin.weight_scale));
        assert_eq!((spec.chain, spec.lanes), (twin.chain, kernel.spec.lanes));
    }
    assert!(BACKWARD.iter().any(|k| k.is_present() && k.spec.set == InstructionSet::Scalar));
}
