//! Tests of the attributes and shapes of the operators on separate channels.

use super::{Conv, Recurrence, SelectiveScan, convolution, recurrence, selective};
use crate::api::TensorShape;
use crate::attributes::fake::{Fake, Integer, List};
use crate::operation::{Geometry, Operation};
use crate::shapes::{FLOAT, FLOAT16, INPUTS, Shapes, count, float, tests::shaped};
use elsa_core::dtype::DType;
use elsa_core::series as engine;
use proptest::prelude::*;

/// Generates sizes of real calls, and sizes that make products overflow.
fn size() -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => 0..4i64,
        1 => prop::sample::select(vec![-1, i64::MIN, i64::MAX, 1 << 31, 1 << 32, 1 << 62]),
    ]
}

/// Boxed, because the values of nine shapes are too large for the stack of a test.
fn shape() -> BoxedStrategy<Option<TensorShape>> {
    let element = prop_oneof![8 => Just(FLOAT), 2 => Just(FLOAT16), 1 => 0..30];
    let shape = (element, prop_oneof![8 => 1usize..5, 1 => 0usize..7], prop::array::uniform4(size()));
    let shape = shape.prop_map(|(element, rank, dims)| TensorShape { element, rank, dims });
    prop::option::weighted(0.8, shape).boxed()
}

/// Generates the shapes of a call. In `ranks`, the rank of most tensors is that of the operator's input.
fn shapes(ranks: &'static [usize]) -> impl Strategy<Value = Shapes> {
    // The same sizes and types in most axes, so that some calls are taken.
    let sizes = prop::array::uniform4(prop_oneof![9 => 1..3i64, 1 => 0..1i64]);
    let usual = (sizes, prop::bool::weighted(0.7), any::<[bool; 2]>());
    (prop::array::uniform10(shape()), usual, any::<[bool; 8]>()).prop_map(
        move |(mut inputs, (sizes, usual, [equal, few]), outputs)| {
            for (input, &rank) in inputs.iter_mut().zip(ranks) {
                if usual {
                    let dims = if equal { [sizes[0]; 4] } else { sizes };
                    *input = Some(TensorShape { element: FLOAT, rank, dims });
                }
            }
            if few {
                inputs[ranks.len().min(5)..].fill(None);
            }
            Shapes { inputs, outputs }
        },
    )
}

/// Returns the number of elements of input `i`, and its type; `None` if the call does not have it.
fn given(shapes: &Shapes, i: usize) -> Option<(usize, DType)> {
    let shape = shapes.input(i)?;
    Some((count(shape), float(shape.element)?))
}

/// Checks that the operands of a problem have the elements of their tensors. `memory` returns the number of elements that the
/// problem states for an operand of a type; the operands are numbered as the inputs, then the outputs.
fn fits<P>(
    shapes: &Shapes,
    geometry: &Geometry<P>,
    inputs: usize,
    memory: impl Fn(usize, DType) -> Option<usize>,
) -> Result<(), TestCaseError> {
    for i in 0..inputs {
        if let Some((elements, dtype)) = given(shapes, i) {
            prop_assert_eq!(memory(i, dtype), Some(elements), "input {}", i);
        }
    }
    for (i, output) in geometry.outputs.iter().enumerate().take(2) {
        prop_assert_eq!(memory(inputs + i, DType::F32), Some(count(output)), "output {}", i);
    }
    Ok(())
}

/// Checks that every call is refused with the name of an argument, or stays inside its tensors.
macro_rules! stays_inside {
    ($operation:ident, $module:ident, $attributes:expr, $shapes:expr) => {{
        use engine::$module::Operand;
        match $operation::geometry(&$attributes, &$shapes) {
            Err(e) => prop_assert!(e.to_string().contains("; allowed: "), "{e}"),
            Ok(geometry) => {
                let inputs = $operation::SIGNATURE.inputs.len();
                prop_assert!(inputs <= INPUTS);
                let memory = |i: usize, dtype| {
                    geometry.problem.memory(Operand::ALL[i], dtype).map(|memory| memory.elements)
                };
                fits(&$shapes, &geometry, inputs, memory)?;
            }
        }
    }};
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn any_recurrence_is_refused_or_stays_inside_its_tensors(
        shapes in shapes(&[3, 3, 2]),
        [tokens_first, reverse, log_gates] in any::<[bool; 3]>(),
    ) {
        let order = super::Order { tokens_first, reverse };
        stays_inside!(Recurrence, recurrence, recurrence::Attributes { order, log_gates }, shapes);
    }

    #[test]
    fn any_selective_scan_is_refused_or_stays_inside_its_tensors(
        shapes in prop_oneof![shapes(&[3, 3, 2, 3, 4, 1, 3, 1, 3]), shapes(&[3, 3, 2, 2, 3, 1, 3, 1, 3])],
        [tokens_first, reverse, softplus] in any::<[bool; 3]>(),
    ) {
        let order = super::Order { tokens_first, reverse };
        stays_inside!(SelectiveScan, selective, selective::Attributes { order, softplus }, shapes);
    }

    #[test]
    fn any_convolution_is_refused_or_stays_inside_its_tensors(
        shapes in prop_oneof![shapes(&[3, 3, 1, 3]), shapes(&[3, 2, 1, 3]), shapes(&[3, 1, 1, 3])],
        [tokens_first, reverse, silu, newest_first] in any::<[bool; 4]>(),
    ) {
        let order = super::Order { tokens_first, reverse };
        let attributes = convolution::Attributes { order, silu, newest_first };
        stays_inside!(Conv, convolution, attributes, shapes);
    }
}

#[test]
fn ordinary_calls_are_taken() {
    let both = |dims: &'static [i64]| [dims, dims];
    let [u, delta] = both(&[2, 6, 5]);
    let scan = shaped(&[u, delta, &[6, 4], &[2, 4, 5], &[2, 3, 4, 5], &[6], u, &[6], &[2, 6, 4]]);
    let attributes = SelectiveScan::attributes(&Fake(&[(c"softplus", Integer(1))])).unwrap();
    let geometry = SelectiveScan::geometry(&attributes, &scan).unwrap();
    assert!(geometry.problem.spec().softplus && !geometry.problem.spec().reverse);
    assert_eq!((geometry.problem.group(&geometry.problem.spec().c), geometry.problem.tokens()), (2, 5));
    assert_eq!(geometry.outputs[1].dims(), [2, 6, 4]);

    let conv = shaped(&[&[2, 6, 5], &[6, 1, 4], &[6], &[2, 6, 3]]);
    let attributes = Conv::attributes(&Fake(&[(c"silu", Integer(1))])).unwrap();
    let geometry = Conv::geometry(&attributes, &conv).unwrap();
    // The last weight multiplies the newest input.
    assert_eq!((geometry.problem.weight(1, 0), geometry.problem.history()), (7, 3));
    assert_eq!(geometry.outputs[1].dims(), [2, 6, 3]);

    let recurrence = shaped(&[&[2, 5, 6], &[2, 5, 6], &[2, 6]]);
    let of = |node: Fake| Recurrence::geometry(&Recurrence::attributes(&node).unwrap(), &recurrence);
    let geometry = of(Fake(&[(c"tokens_first", Integer(1)), (c"reverse", Integer(1))])).unwrap();
    assert!(geometry.problem.spec().reverse && geometry.problem.tokens() == 5);
    assert_eq!(geometry.outputs[1].dims(), [2, 6]);
    // In the other order of axes, the state has another shape.
    let message = of(Fake(&[])).unwrap_err().to_string();
    assert_eq!(message, "past_state: channels 6; allowed: 5, as b has");
}

#[test]
fn calls_that_do_not_fit_are_refused_by_name() {
    let refused = |found: Result<(), crate::error::OperatorError>, says: &str| {
        let message = found.unwrap_err().to_string();
        assert!(message.starts_with(says), "{message}\n{says}");
    };
    let conv = |inputs: &[&[i64]]| {
        let attributes = Conv::attributes(&Fake(&[])).unwrap();
        Conv::geometry(&attributes, &shaped(inputs)).map(drop)
    };
    refused(conv(&[]), "u: absent; allowed: given");
    refused(conv(&[&[2, 6]]), "u: rank 2; allowed: 3: batch, channels, tokens");
    refused(conv(&[&[2, 6, 5], &[5, 1, 4]]), "filter: channels 5; allowed: 6, as u has");
    refused(conv(&[&[2, 6, 5], &[6, 2, 4]]), "filter: second axis 2; allowed: 1");
    refused(conv(&[&[2, 6, 5], &[6, 1, 0]]), "filter: weights 0; allowed: at least 1");
    refused(conv(&[&[2, 6, 5], &[4], &[5]]), "bias: channels 5; allowed: 6, as u has");
    refused(conv(&[&[2, 6, 5], &[4], &[6], &[2, 6, 4]]), "past_state: inputs 4; allowed: 3, as filter has");
    let scan = |inputs: &[&[i64]]| {
        let attributes = SelectiveScan::attributes(&Fake(&[])).unwrap();
        SelectiveScan::geometry(&attributes, &shaped(inputs)).map(drop)
    };
    let u: &[i64] = &[2, 6, 5];
    refused(scan(&[u, u, &[6, 4], &[2, 4, 5]]), "c: absent; allowed: given");
    refused(scan(&[u, u, &[5, 4], &[2, 4, 5], &[2, 4, 5]]), "a: channels 5; allowed: 6, as u has");
    refused(scan(&[u, u, &[6, 4], &[2, 6, 5], &[2, 4, 5]]), "b: channels 6; allowed: a multiple of 4");
    refused(scan(&[u, &[2, 6, 4], &[6, 4], &[2, 4, 5], &[2, 4, 5]]), "delta: tokens 4; allowed: 5");
    refused(scan(&[u, u, &[6, 4], &[6, 4], &[6, 3]]), "c: states 3; allowed: 4, as a has");
    let wrong = Fake(&[(c"tokens_first", Integer(2))]);
    refused(Conv::attributes(&wrong).map(drop), "tokens_first: 2; allowed: 0 or 1");
    let wrong = Fake(&[(c"log_gates", List(&[1, 1]))]);
    refused(
        Recurrence::attributes(&wrong).map(drop),
        "log_gates: an attribute of another type; allowed: 0 or 1",
    );
}
