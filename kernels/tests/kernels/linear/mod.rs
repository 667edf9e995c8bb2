//! Tests each kernel of linear attention that this machine can execute: compares its segments, strips and readings with
//! the recurrence in f64.

mod case;

use crate::noise;
use case::{Case, SCALE, Start, Strips};
use elsa_core::linear::Gates;
use elsa_core::profile::InstructionSet;
use elsa_kernels::linear::{CLEARS, Factors, Head, Kernel, Reading, Segment, head_room};
use elsa_kernels::registry::{LINEAR, linear_of};

fn present() -> Vec<&'static Kernel> {
    let found: Vec<_> = LINEAR.iter().copied().filter(|k| k.is_present()).collect();
    assert!(found.iter().any(|k| k.spec.set == InstructionSet::Scalar));
    println!("kernels: {:?}", found.iter().map(|k| k.spec.name).collect::<Vec<_>>());
    found
}

/// Returns the largest number of tokens that a kernel of the recurrent algorithm processes in one pass over the state.
fn together(kernel: &Kernel, delta: bool) -> usize {
    if delta { kernel.spec.delta_tokens } else { kernel.spec.steady_tokens }
}

const RULES: [(Gates, bool); 6] = [
    (Gates::None, false),
    (Gates::PerHead, false),
    (Gates::PerDim, false),
    (Gates::None, true),
    (Gates::PerHead, true),
    (Gates::PerDim, true),
];

#[test]
fn tokens_pass_as_the_definition_has_them() {
    // Miri is slow, and covers every kind of strip, pass and tile with few cases.
    let slow = cfg!(miri);
    let rules = if slow { &RULES[2..4] } else { &RULES[..] };
    let tokens: &[usize] = if slow { &[13] } else { &[1, 3, 4, 9, 37, 70] };
    let passes: &[(usize, usize)] =
        if slow { &[(8, 32), (13, 32)] } else { &[(1, 5), (4, 32), (5, 64), (8, 32), (40, 64)] };
    for kernel in present() {
        let both = [[7, kernel.spec.columns + 1]];
        let sizes = if slow { &both[..] } else { &[[4, 1], [7, 33], [36, 20]] };
        for &(per, delta) in rules {
            let groups: &[usize] = if slow { &[1 + usize::from(delta)] } else { &[0, 1, 3] };
            for (&tokens, &size) in tokens.iter().flat_map(|t| sizes.iter().map(move |s| (t, s))) {
                for &group in groups {
                    let case = Case::new(size, tokens, group, per, delta);
                    for &(pass, block) in passes {
                        case.check(kernel, pass, block, tokens == 9, "random");
                    }
                }
            }
        }
    }
}

/// Tests gates that shrink or amplify the state at every token, and equal keys.
#[test]
#[cfg_attr(miri, ignore = "the operations of other tests")]
fn steep_gates_and_equal_keys_pass_as_the_definition_has_them() {
    for kernel in present() {
        for (per, delta) in RULES.into_iter().filter(|(per, _)| *per != Gates::None) {
            for pass in [together(kernel, delta), 16, 64] {
                let mut case = Case::new([12, 9], 50, 1, per, delta);
                // Fifty gates of e make a factor of 5e21, whose square is still an f32 number.
                for (what, gate) in [("strong", -30.0), ("steady", -3.0), ("growing", 1.0)] {
                    case.gates.fill(gate);
                    case.check(kernel, pass, 64, false, what);
                }
            }
        }
        for beta in [1.0, 1.9] {
            let mut case = Case::new([12, 9], 64, 1, Gates::None, true);
            let first = case.keys[..12].to_vec();
            case.keys.chunks_mut(12).for_each(|key| key.copy_from_slice(&first));
            case.betas.fill(beta);
            for pass in [4, 16, 64] {
                case.check(kernel, pass, 64, false, "equal keys");
            }
        }
    }
}

/// Checks that a constant gate does not repeat the same rounding error for thousands of tokens. Covers the kernels
/// whose multiply-add rounds once.
#[test]
#[cfg_attr(miri, ignore = "the operations of other tests")]
fn a_steady_gate_keeps_its_precision() {
    for kernel in present().into_iter().filter(|k| k.spec.fused) {
        for (per, delta) in [(Gates::PerHead, false), (Gates::PerDim, false), (Gates::PerHead, true)] {
            let mut case = Case::new([4, 1], 4096, 1, per, delta);
            // As an f32 number, the fourth power of this gate has an error of 5e-8.
            case.gates.fill(-3.2e-4);
            if delta {
                case.betas.fill(0.0);
            }
            case.values[1..].fill(0.0);
            let (_, last) = case.run(kernel, 4, 4, false);
            for (got, want) in last.iter().zip(case.reference().1) {
                let error = (f64::from(*got) - want[0]).abs();
                // Each of the 1024 segments rounds twice, and not always in the same direction.
                let limit = 1e-5 * want[0].abs();
                assert!(error <= limit, "{} {per:?}: {got} {want:?}", kernel.spec.name);
            }
        }
    }
}

/// Checks that sums of gates are f64. In an f32 sum, small gates would be lost next to a large one.
#[test]
#[cfg_attr(miri, ignore = "the operations of other tests")]
fn a_large_gate_hides_no_small_one() {
    for kernel in present() {
        for (per, delta) in RULES.into_iter().filter(|(per, _)| *per != Gates::None) {
            let mut case = Case::new([8, 5], 60, 1, per, delta);
            // One gate is less than half a unit in the last place of 27; all gates together are a hundred times the
            // tolerance.
            case.gates.fill(-0.9e-6);
            case.gates[..if per == Gates::PerDim { 8 } else { 1 }].fill(-27.0);
            case.values[5..].fill(0.0);
            case.betas[1..].fill(0.0);
            case.check(kernel, together(kernel, delta), 64, false, "small gates");
        }
    }
}

/// Checks the relative error of all outputs with unit keys: for 1024 tokens in several passes (4096 tokens without
/// gates or delta rule), and for 1024 tokens in a single pass. Under the delta rule without gates, the error grows with
/// the square root of the number of tokens in a pass; so for this rule a pass of 1100 tokens is also checked, and its
/// error has a smaller limit.
#[test]
#[cfg_attr(miri, ignore = "the operations of other tests")]
fn errors_of_a_thousand_tokens_stay_below_five_in_ten_million() {
    for kernel in present() {
        for (per, delta) in RULES {
            let few = together(kernel, delta);
            let steady = per == Gates::None && !delta;
            let long = if steady { 4096 } else { 1024 };
            let root = per == Gates::None && delta;
            for (pass, tokens, limit) in
                [(few, long, 5e-7), (16, 1024, 5e-7), (1024, 1024, 5e-7), (1100, 1100, 4e-7)]
            {
                if pass == 1100 && !root || pass == 1024 && kernel.spec.set == InstructionSet::Scalar {
                    continue;
                }
                let block = pass.max(64);
                let case = Case::new([64, 16], tokens, 1, per, delta);
                let (mut error, mut size) = (0.0, 0.0);
                let (out, _) = case.run(kernel, pass, block, false);
                for (got, want) in out.iter().zip(case.reference().0) {
                    error += (f64::from(*got) - want[0]).powi(2);
                    size += want[0].powi(2);
                }
                let relative = (error / size).sqrt();
                println!("{} {per:?} delta {delta} pass {pass}: {relative:.2e}", kernel.spec.name);
                assert!(
                    relative <= limit,
                    "{} {per:?} delta {delta} pass {pass}: {relative}",
                    kernel.spec.name
                );
            }
        }
    }
}

#[test]
fn readings_and_factors_are_products() {
    for kernel in present() {
        let spec = &kernel.spec;
        for width in [spec.lanes, spec.columns, spec.delta_columns] {
            let sizes = if cfg!(miri) { &[(5, 4)][..] } else { &[(1, 4), (5, 12), (9, 8)] };
            for &(rows, dim) in sizes {
                let (x, state) = (noise(rows * dim, 1), noise(dim * width, 2));
                for add in [false, true] {
                    let mut y = vec![if add { 0.5f32 } else { f32::NAN }; rows * width];
                    let reading = Reading {
                        state: state.as_ptr(),
                        width,
                        dim,
                        x: x.as_ptr(),
                        x_stride: dim as isize,
                        rows,
                        scale: SCALE,
                        y: y.as_mut_ptr(),
                        y_stride: width as isize,
                        add,
                    };
                    // SAFETY: the kernel is present, and every array has the size that the contract requires.
                    unsafe { (kernel.read)(&reading) };
                    for (i, y) in y.iter().enumerate() {
                        let product = |r: usize| {
                            f64::from(x[i / width * dim + r]) * f64::from(state[r * width + i % width])
                        };
                        let want = f64::from(SCALE) * (0..dim).map(product).sum::<f64>()
                            + if add { 0.5 } else { 0.0 };
                        assert!((f64::from(*y) - want).abs() <= 1e-6, "{} {i}: {y} {want}", spec.name);
                    }
                }
            }
            // Each row has its own factor: one clears its row, and one makes numbers vanish.
            let (high, rest) = ([0.5, CLEARS, 1.0, 0.25f32], [1e-7, 1e-7, 1e-7, 1e-7f32]);
            let mut state = noise(4 * width, 3);
            state[width] = f32::NAN;
            state[2 * width] = f32::INFINITY;
            state[3 * width] = 3.0 * f32::MIN_POSITIVE;
            let before = state.clone();
            let factors = Factors { high: high.as_ptr(), rest: rest.as_ptr(), per_dim: true };
            // SAFETY: the kernel is present; there are four rows, and a factor for each.
            unsafe {
                let to = state.as_mut_ptr();
                (kernel.multiply)(&factors, (to, width), (to, width), 4, width);
            }
            assert_eq!((state[width], state[2 * width], state[3 * width]), (0.0, f32::INFINITY, 0.0));
            for (i, (got, was)) in state.iter().zip(&before).enumerate() {
                if i == 0 || i % width > 0 {
                    let want = f64::from(*was) * f64::from(high[i / width]) * (1.0 + 1e-7);
                    assert!(
                        (f64::from(*got) - want).abs() <= 1.3e-7 * want.abs(),
                        "{} {i}: {got} {want}",
                        spec.name
                    );
                }
            }
        }
    }
}

/// Checks that the bits of a result do not depend on the width of a strip, and do not depend on the locations of its
/// rows before and after the segment. Covers complete passes, single tokens and gates that multiply the state.
#[test]
#[cfg_attr(miri, ignore = "the operations of other tests")]
fn strips_in_place_get_the_bits_of_packed_ones() {
    for kernel in present() {
        let columns = kernel.spec.delta_columns + kernel.spec.columns + kernel.spec.lanes;
        for (per, delta) in RULES {
            for group in [0, 1, 3] {
                let few = together(kernel, delta);
                for (tokens, pass, block) in
                    [(1, few, 64), (1, 16, 64), (7, few, 64), (21, few, 8), (21, 16, 32)]
                {
                    let mut case = Case::new([8, columns], tokens, group, per, delta);
                    case.gates.iter_mut().step_by(13).for_each(|g| *g = -50.0);
                    let bits = |case: &Case| {
                        let (out, last) = case.run(kernel, pass, block, false);
                        out.iter().chain(&last).map(|x| x.to_bits()).collect::<Vec<_>>()
                    };
                    let packed = bits(&case);
                    let mut none = case.clone();
                    none.past.fill(0.0);
                    let zeros = bits(&none);
                    for strips in [Strips::Packed, Strips::Narrow, Strips::InPlace] {
                        (case.strips, none.strips) = (strips, strips);
                        let what = (kernel.spec.name, per, delta, group, tokens, pass, strips);
                        for start in [Start::Here, Start::Elsewhere] {
                            case.start = start;
                            assert_eq!(bits(&case), packed, "{what:?} {start:?}");
                        }
                        for start in [Start::Here, Start::Nowhere] {
                            none.start = start;
                            assert_eq!(bits(&none), zeros, "{what:?} {start:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Checks that the exponentials by which a token's values and outputs are multiplied have the declared accuracy.
#[test]
fn exponentials_are_as_exact_as_declared() {
    for kernel in present() {
        let steps = if cfg!(miri) { 10 } else { 20_000 };
        let mut largest = 0.0f64;
        for step in 0..=steps {
            // The exponentials of these gates reach from 2^-40 to 2^40.
            let gate = (step as f32 / steps as f32 * 2.0 - 1.0) * 27.7;
            let keys = [1.0f32; 4];
            let mut room = vec![0.0; head_room(1, 4, 0, Gates::PerHead, false, 1)];
            let head = Head {
                tokens: 1,
                dim: 4,
                rows: 4,
                queries: std::ptr::null(),
                query_stride: 0,
                group: 0,
                group_stride: 0,
                keys: keys.as_ptr(),
                key_stride: 0,
                gates: &gate,
                gate_stride: 0,
                per: Gates::PerHead,
                betas: std::ptr::null(),
                beta_stride: 0,
                scale: 1.0,
                pass: 1,
            };
            let mut segment = Segment::EMPTY;
            // SAFETY: the kernel is present; there is one token, and the room has the required size. The room contains
            // the results.
            let got = unsafe {
                (kernel.prepare)(&head, room.as_mut_ptr(), &mut segment);
                [segment.up.read(), segment.down.read()]
            };
            for (got, want) in got.into_iter().zip([f64::from(gate).exp(), (-f64::from(gate)).exp()]) {
                largest = largest.max((f64::from(got) / want - 1.0).abs());
            }
            if gate == 0.0 {
                assert_eq!(got, [1.0, 1.0]);
            }
        }
        println!("{}: {largest:.3e}", kernel.spec.name);
        assert!(largest <= kernel.spec.exp_relative, "{}: {largest:e}", kernel.spec.name);
    }
}

#[test]
fn linear_kernels_declare_what_they_are() {
    for kernel in LINEAR {
        let spec = &kernel.spec;
        assert!(std::ptr::eq(linear_of(spec.set).unwrap(), *kernel));
        assert!(spec.columns.is_multiple_of(spec.lanes) && (1..=8).contains(&spec.tokens), "{}", spec.name);
        assert!((1..=spec.tokens).contains(&spec.delta_tokens), "{}", spec.name);
        assert!((spec.tokens..=8).contains(&spec.steady_tokens), "{}", spec.name);
        assert!(spec.delta_columns.is_multiple_of(spec.columns), "{}", spec.name);
        let name = format!("linear_f32_t{}c{}__{}", spec.tokens, spec.columns, spec.set.name());
        assert_eq!(spec.name, name);
    }
}

#[test]
#[cfg_attr(miri, ignore = "the operations of other tests")]
fn a_state_that_decays_ends_at_zero() {
    for kernel in present() {
        for (per, delta) in RULES.into_iter().filter(|(per, _)| *per != Gates::None) {
            for pass in [4, 16] {
                // No token writes to the state.
                let mut case = Case::new([64, 64], 300, 1, per, delta);
                case.gates.fill(-0.5);
                case.values.fill(0.0);
                let (out, last) = case.run(kernel, pass, 64, false);
                assert!(last.iter().all(|s| *s == 0.0), "{} {per:?} {delta} {last:?}", kernel.spec.name);
                assert!(out.iter().all(|y| y.is_finite()), "{}", kernel.spec.name);
                // Tiny numbers that stay normal do not vanish.
                case.past.fill(3.0 * f32::MIN_POSITIVE);
                (case.tokens, case.betas) = (1, vec![0.0; 300]);
                let (_, last) = case.run(kernel, pass, 64, false);
                assert!(last.iter().all(|s| *s > 0.0), "{} {per:?} {delta} {last:?}", kernel.spec.name);
            }
        }
    }
}
