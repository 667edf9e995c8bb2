//! Compares the bias of a tile with its definition, for every instruction set of this machine and every kind of
//! mask.

use elsa_core::attention::{MaskElements, MaskKind};
use elsa_core::dtype::{DType, Elements};
use elsa_core::random::Random;
use elsa_kernels::attention::{Kernel, MaskTile, Seen, SideTile};
use elsa_kernels::registry::ATTENTION;
use half::{bf16, f16};

/// Generator of mask elements.
struct Numbers(Random);

impl Numbers {
    /// Returns an element of an additive mask. In flavour 0 all elements are zero, in 1 all are masked, in 2 they are
    /// small numbers, and in 3 they are numbers of any kind.
    fn element(&mut self, flavour: usize) -> f32 {
        match flavour {
            0 => [0.0, -0.0][self.0.below(2)],
            1 => f32::NEG_INFINITY,
            2 => self.0.below(1000) as f32 * 0.01 - 5.0,
            _ => {
                let hard = [
                    f32::NEG_INFINITY,
                    f32::MIN,
                    f32::MAX,
                    f32::INFINITY,
                    f32::NAN,
                    1e-45,
                    -1.179_328_8e38,
                    65504.0,
                ];
                let at = self.0.below(3 * hard.len());
                hard.get(at).copied().unwrap_or(at as f32 * 0.37)
            }
        }
    }
}

enum Data {
    Bool(Vec<u8>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    fn new(kind: MaskKind, count: usize, flavour: usize, numbers: &mut Numbers) -> Data {
        let mut elements = |_| numbers.element(flavour);
        match kind {
            MaskKind::Bool => Data::Bool(
                (0..count)
                    .map(|i| match flavour {
                        0 => 1 + (i % 255) as u8,
                        1 => 0,
                        _ => (numbers.0.below(3) * 127) as u8,
                    })
                    .collect(),
            ),
            MaskKind::Additive(DType::F32) => Data::F32((0..count).map(&mut elements).collect()),
            MaskKind::Additive(DType::F16) => {
                Data::F16((0..count).map(|i| f16::from_f32(elements(i))).collect())
            }
            MaskKind::Additive(DType::Bf16) => {
                Data::Bf16((0..count).map(|i| bf16::from_f32(elements(i))).collect())
            }
        }
    }

    fn elements(&self) -> MaskElements<'_> {
        match self {
            Data::Bool(x) => MaskElements::Bool(x),
            Data::F32(x) => MaskElements::Additive(Elements::F32(x)),
            Data::F16(x) => MaskElements::Additive(Elements::F16(x)),
            Data::Bf16(x) => MaskElements::Additive(Elements::Bf16(x)),
        }
    }
}

/// Checks a tile of `rows` rows and `keys` keys. In the mask, each row has `before` elements in front of these keys and
/// ends with the last key.
fn check(
    kernel: &Kernel,
    vectors: usize,
    kind: MaskKind,
    shape: [usize; 3],
    form: usize,
    numbers: &mut Numbers,
) {
    let [rows, keys, before] = shape;
    let width = vectors * kernel.spec.lanes;
    let (shared, one_key) = (form % 3 == 1, form % 3 == 2);
    let length = if one_key { 1 } else { before + keys };
    let lines = if shared { 1 } else { rows };
    let flavour = numbers.0.below(4);
    let data = Data::new(kind, lines * length, flavour, numbers);
    let elements = data.elements();
    let before = if one_key { 0 } else { before };
    let tile = MaskTile {
        data: elements.as_ptr().wrapping_add(before * kind.size()),
        kind,
        stride: if shared { 0 } else { length },
        same_for_all_keys: one_key,
        before,
        rows,
        keys,
    };
    let mut bias = vec![7.0f32; keys * width + 1];
    let mut seen = Seen::Plain;
    // SAFETY: the mask has `lines` rows that end with the last key; the bias has `width` values for every key; the
    // instruction set is present.
    unsafe { (kernel.bias)(&tile, width, bias.as_mut_ptr(), &mut seen) };
    assert_eq!(bias[keys * width], 7.0, "beyond the bias");
    let want = |row: usize, key: usize| {
        let row = if shared { 0 } else { row * length };
        elements.bias(row + if one_key { 0 } else { before + key }) * std::f32::consts::LOG2_E
    };
    let all = || (0..rows).flat_map(|row| (0..keys).map(move |key| (row, key)));
    let name = format!("{} {kind:?} {shape:?} width {width} form {form} flavour {flavour}", kernel.spec.name);
    let nothing = all().all(|(row, key)| want(row, key) == f32::NEG_INFINITY);
    let plain = all().all(|(row, key)| want(row, key) == 0.0);
    let expected = if nothing {
        Seen::Nothing
    } else if plain {
        Seen::Plain
    } else {
        Seen::Biased
    };
    if seen == Seen::Added {
        assert_eq!(expected, Seen::Biased, "{name}");
        assert!(all().all(|(row, key)| want(row, key).is_finite()), "{name}");
    } else {
        assert_eq!(seen, expected, "{name}");
    }
    if seen.is_written() {
        for (row, key) in all() {
            let (found, want) = (bias[key * width + row], want(row, key));
            assert!(found == want || (found.is_nan() && want.is_nan()), "{name}: {found}, not {want}");
        }
    }
}

#[test]
fn every_form_of_mask_becomes_the_bias_that_it_defines() {
    let mut numbers = Numbers(Random::new(1));
    let kinds = [
        MaskKind::Bool,
        MaskKind::Additive(DType::F32),
        MaskKind::Additive(DType::F16),
        MaskKind::Additive(DType::Bf16),
    ];
    let mut checked = 0;
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present()) {
        for vectors in 1..=kernel.spec.vectors {
            let width = vectors * kernel.spec.lanes;
            for kind in kinds {
                for round in 0..if cfg!(miri) { 6 } else { 600 } {
                    let rows = 1 + numbers.0.below(width);
                    let keys = [1, 2, 5, 15, 16, 17, 31, 49, 64, 100, 128, 256][numbers.0.below(12)];
                    let before = [0, 0, 1, 7, 15, 64][numbers.0.below(6)];
                    check(kernel, vectors, kind, [rows, keys, before], round % 3, &mut numbers);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= 48, "{checked}");
}

/// Checks that a masked key stays masked with any addend, and that finite sums stay finite.
#[test]
fn biases_are_added_and_divided() {
    const OUT: f32 = f32::NEG_INFINITY;
    let most = elsa_core::attention::MASK_LIMIT * std::f32::consts::LOG2_E;
    let x = [OUT, f32::NAN, most, -most, f32::INFINITY, 0.5, -0.25];
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present()) {
        let lanes = kernel.spec.lanes;
        let pairs = (x.len() * x.len()).next_multiple_of(lanes);
        let a: Vec<f32> = (0..pairs).map(|i| x[i % x.len()]).collect();
        let b: Vec<f32> = (0..pairs).map(|i| x[i / x.len() % x.len()]).collect();
        let mut sum = vec![7.0f32; pairs];
        // SAFETY: all three arrays have `pairs` values, a multiple of the lanes; the kernel is present.
        unsafe { (kernel.add)(a.as_ptr(), b.as_ptr(), pairs, sum.as_mut_ptr()) };
        for ((a, b), found) in a.iter().zip(&b).zip(&sum) {
            let want = match (*a, *b) {
                (a, b) if a == OUT || b == OUT => OUT,
                (a, b) if a.is_finite() && b.is_finite() => (a + b).clamp(-most, most),
                (a, b) => a + b,
            };
            assert!(*found == want || (found.is_nan() && want.is_nan()), "{a} + {b} = {found}");
        }
        for (row_sides, key_sides) in [(2, 3), (1, 1), (1, 2), (3, 1)] {
            let (rows, keys) = (
                (0..lanes).map(|i| (i % row_sides) as f32).collect::<Vec<_>>(),
                (0..5).map(|i| (i % key_sides + usize::from(key_sides == 1)) as f32).collect::<Vec<_>>(),
            );
            let bias: Vec<f32> = (0..5 * lanes).map(|i| i as f32).collect();
            let mut to = vec![7.0f32; 5 * lanes];
            let mut seen = Seen::Plain;
            let tile = SideTile { rows: rows.as_ptr(), keys: keys.as_ptr(), count: 5, bias: bias.as_ptr() };
            // SAFETY: each lane and each of five keys has a side, and each pair has a bias; the kernel is present.
            unsafe { (kernel.divide)(&tile, lanes, to.as_mut_ptr(), &mut seen) };
            let same = |key: usize, row: usize| rows[row] == keys[key];
            let count = (0..5 * lanes).filter(|i| same(i / lanes, i % lanes)).count();
            match seen {
                Seen::Nothing => assert_eq!(count, 0),
                Seen::Plain => assert_eq!(count, 5 * lanes),
                Seen::Added => panic!("sides mask"),
                Seen::Biased => {
                    for (i, found) in to.iter().enumerate() {
                        assert_eq!(*found, if same(i / lanes, i % lanes) { i as f32 } else { OUT });
                    }
                }
            }
        }
    }
}
