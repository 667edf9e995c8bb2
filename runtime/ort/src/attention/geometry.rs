//! Derives the problem of a call and the shapes of its outputs from the attributes of the node and the shapes of the
//! inputs. This module has no unsafe code, and checks every shape.

use super::attributes::Attributes;
use super::operands::{Input, Output};
use crate::api::TensorShape;
use crate::error::OperatorError;
use crate::operation;
use crate::shapes::{BOOL, FLOAT, FLOAT16, Given, INT64, OUTPUTS, Shapes, UINT8, float, same, shape_of};
use elsa_core::attention::{
    Alignment, BiasView, MaskKind, MaskView, Problem, Spec, TableView, Window, Windows, repeated,
};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};

/// Returns a copy of the shapes in which an empty batch is replaced by a batch of 1; `None` if the batch is not empty.
pub(crate) fn of_no_sequence(shapes: &Shapes) -> Option<Shapes> {
    let batch = |input: Input| shapes.input(input).filter(|shape| shape.rank >= 3).map(|shape| shape.dims[0]);
    let given = || [Input::Query, Input::Key, Input::Value].into_iter().filter_map(batch);
    if !given().any(|n| n == 0) || given().any(|n| n > 1) {
        return None;
    }
    let mut shapes = *shapes;
    for input in [Input::Query, Input::Key, Input::Value, Input::Mask, Input::PastKey, Input::PastValue] {
        let full = if input == Input::Mask { 4 } else { 3 };
        if let Some(shape) = shapes.inputs[input as usize].as_mut().filter(|shape| shape.rank >= full) {
            shape.dims[0] = shape.dims[0].max(1);
        }
    }
    if let Some(lengths) = shapes.inputs[Input::KeyLengths as usize].as_mut() {
        lengths.dims[0] = lengths.dims[0].max(1);
    }
    Some(shapes)
}

/// Places of queries, keys and values in the inputs.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// Offsets of the first query, key and value in their tensors, in elements.
    pub offsets: [usize; 3],
    /// `true` if one tensor contains queries, keys and values.
    pub packed: bool,
}

/// The geometry of a call. Its outputs are in the order of [`Output`].
pub(crate) type Geometry = operation::Geometry<Problem, Placement>;

fn wrong_type(input: Input, shape: &TensorShape, allowed: &'static str) -> OperatorError {
    Given { argument: input.name(), shape }.wrong_type(allowed)
}

/// Converts the axes of a tensor to sizes.
fn sizes(input: Input, shape: &TensorShape) -> Result<[usize; 4], OperatorError> {
    Given { argument: input.name(), shape }.sizes()
}

/// Views of the queries, keys and values, and the offsets of their first elements.
struct Views {
    query: View,
    key: View,
    value: View,
    offsets: [usize; 3],
}

/// Returns the view of a tensor. Its type and rank must equal those of `Q`.
fn view(
    input: Input,
    shapes: &Shapes,
    query: &TensorShape,
    heads: Option<usize>,
    attribute: &'static str,
) -> Result<View, OperatorError> {
    let Some(shape) = shapes.input(input) else {
        return Err(OperatorError::Missing { argument: input.name(), other: "Q without packed" });
    };
    if shape.element != query.element {
        return Err(wrong_type(input, shape, "that of Q"));
    }
    if shape.rank != query.rank {
        let allowed = "that of Q";
        return Err(OperatorError::Rank { argument: input.name(), found: shape.rank, allowed });
    }
    let sizes = sizes(input, shape)?;
    if query.rank == 3 {
        return Ok(View::dense(input.name(), Layout::Bnc, &sizes[..3], heads)?);
    }
    if let Some(heads) = heads
        && sizes[1] != heads
    {
        return Err(OperatorError::Size {
            argument: input.name(),
            axis: "heads",
            found: shape.dims[1],
            allowed: i64::try_from(heads).unwrap_or(i64::MAX),
            of: attribute,
        });
    }
    Ok(View::dense(input.name(), Layout::Bhnd, &sizes, None)?)
}

fn separate(attributes: &Attributes, shapes: &Shapes, query: &TensorShape) -> Result<Views, OperatorError> {
    let Attributes { num_heads, kv_num_heads, .. } = *attributes;
    if query.rank == 3 && num_heads.is_none() {
        return Err(OperatorError::Missing { argument: "num_heads", other: "Q of rank 3" });
    }
    // The number of query heads is the default for key heads only if the tensors have no axis of heads.
    let kv_heads = if query.rank == 3 { kv_num_heads.or(num_heads) } else { kv_num_heads };
    let of = |input, heads, attribute| view(input, shapes, query, heads, attribute);
    Ok(Views {
        query: of(Input::Query, num_heads, "num_heads")?,
        key: of(Input::Key, kv_heads, "kv_num_heads")?,
        value: of(Input::Value, kv_heads, "kv_num_heads")?,
        offsets: [0; 3],
    })
}

/// Returns the views of queries, keys and values in a packed tensor `[batch, tokens, 3 · heads · dim]`.
fn packed(attributes: &Attributes, shapes: &Shapes, query: &TensorShape) -> Result<Views, OperatorError> {
    for input in [Input::Key, Input::Value] {
        if shapes.input(input).is_some() {
            return Err(OperatorError::Conflict { argument: input.name(), other: "packed" });
        }
    }
    if query.rank != 3 {
        return Err(OperatorError::Rank {
            argument: "Q",
            found: query.rank,
            allowed: "3, where packed is 1",
        });
    }
    let heads =
        attributes.num_heads.ok_or(OperatorError::Missing { argument: "num_heads", other: "packed" })?;
    let [batch, tokens, width, _] = sizes(Input::Query, query)?;
    let third = width / 3;
    if !width.is_multiple_of(3) || !third.is_multiple_of(heads) {
        return Err(OperatorError::Value {
            argument: "Q",
            found: format!("last axis {width} with {heads} heads"),
            allowed: "3 times a multiple of num_heads, where packed is 1",
        });
    }
    let dim = third / heads;
    let shape = [batch, heads, tokens, dim];
    let large = elsa_core::argument::ArgumentError::TooLarge { argument: "Q", shape };
    let view = View::new("Q", shape, [tokens.checked_mul(width).ok_or(large)?, dim, width, 1])?;
    // The packed tensor contains queries, keys and values, and must be indexable as a whole.
    View::new("Q", [batch, 1, tokens, width], [tokens * width, 0, width, 1])?;
    Ok(Views { query: view, key: view, value: view, offsets: [0, third, 2 * third] })
}

fn mask(shapes: &Shapes, query: &TensorShape) -> Result<Option<MaskView>, OperatorError> {
    let Some(mask) = shapes.input(Input::Mask) else { return Ok(None) };
    let kind = match mask.element {
        // In a mask of bytes, a nonzero byte has the meaning of `true`.
        BOOL | UINT8 => MaskKind::Bool,
        FLOAT => MaskKind::Additive(DType::F32),
        FLOAT16 if query.element == FLOAT16 => MaskKind::Additive(DType::F16),
        _ => return Err(wrong_type(Input::Mask, mask, "bool, u8, f32, or that of Q")),
    };
    if mask.rank > 4 {
        return Err(OperatorError::Rank { argument: "mask", found: mask.rank, allowed: "1 to 4" });
    }
    let sizes = sizes(Input::Mask, mask)?;
    Ok(Some(MaskView::dense(kind, &sizes[..mask.rank])?))
}

/// Returns the table of relative positions, and the windows to which the positions belong.
fn windows(
    attributes: &Attributes,
    shapes: &Shapes,
    query: &TensorShape,
) -> Result<(Option<BiasView>, Option<Windows>), OperatorError> {
    let (size, table) = match (attributes.grid, shapes.input(Input::BiasTable)) {
        (None, None) => return Ok((None, None)),
        (Some(size), Some(table)) => (size, table),
        (Some(_), None) => return Err(OperatorError::Missing { argument: "bias_table", other: "grid" }),
        (None, Some(_)) => return Err(OperatorError::Missing { argument: "grid", other: "bias_table" }),
    };
    let allowed = "f32, or that of Q";
    let dtype = match float(table.element) {
        Some(DType::F32) => DType::F32,
        Some(dtype) if table.element == query.element => dtype,
        _ => return Err(wrong_type(Input::BiasTable, table, allowed)),
    };
    if table.rank != 2 {
        let allowed = "2: entries and heads";
        return Err(OperatorError::Rank { argument: "bias_table", found: table.rank, allowed });
    }
    let [entries, heads, ..] = sizes(Input::BiasTable, table)?;
    let picture = attributes.picture.unwrap_or(size);
    let shift = attributes.shift.unwrap_or([0, 0]);
    // The table has (2h - 1)(2w - 1) entries. Sides for which this overflows have more tokens than any tensor.
    if size.into_iter().any(|side| side > 1 << 24) {
        return Err(OperatorError::Value {
            argument: "grid",
            found: format!("{size:?}"),
            allowed: "rows and columns whose product is the number of tokens",
        });
    }
    let table = TableView { dtype, entries, heads, indexed: false };
    Ok((Some(BiasView::Table(table)), Some(Windows { picture, size, shift })))
}

fn past(input: Input, shapes: &Shapes, query: &TensorShape) -> Result<Option<View>, OperatorError> {
    let Some(shape) = shapes.input(input) else { return Ok(None) };
    if shape.element != query.element {
        return Err(wrong_type(input, shape, "that of Q"));
    }
    if shape.rank != 4 {
        let allowed = "4: batch, heads of the keys, tokens, dim";
        return Err(OperatorError::Rank { argument: input.name(), found: shape.rank, allowed });
    }
    Ok(Some(View::dense(input.name(), Layout::Bhnd, &sizes(input, shape)?, None)?))
}

/// Checks the input with the number of valid keys per sequence. Returns `true` if the call has this input. In that
/// case, the numbers of valid keys determine the position of a causal diagonal.
fn lengths(attributes: &Attributes, shapes: &Shapes, batch: usize) -> Result<bool, OperatorError> {
    let Some(lengths) = shapes.input(Input::KeyLengths) else { return Ok(false) };
    let argument = Input::KeyLengths.name();
    if lengths.element != INT64 {
        return Err(wrong_type(Input::KeyLengths, lengths, "i64"));
    }
    if lengths.rank != 1 {
        return Err(OperatorError::Rank { argument, found: lengths.rank, allowed: "1: batch" });
    }
    if usize::try_from(lengths.dims[0]) != Ok(batch) {
        return Err(OperatorError::Size {
            argument,
            axis: "entries",
            found: lengths.dims[0],
            allowed: i64::try_from(batch).unwrap_or(i64::MAX),
            of: "the batch of Q",
        });
    }
    for past in [Input::PastKey, Input::PastValue] {
        if shapes.input(past).is_some() {
            return Err(OperatorError::Conflict { argument, other: past.name() });
        }
    }
    // A window follows the diagonal. The diagonal must end at the last valid key, and only a causal mask moves it there.
    if attributes.window != Window::default() && !attributes.causal {
        return Err(OperatorError::Missing { argument: "is_causal", other: "window with kv_lengths" });
    }
    Ok(true)
}

/// Returns the argument because of which a call can have no present keys and values; `None` if it can have them.
pub(crate) fn without_present(shapes: &Shapes) -> Option<&'static str> {
    let given = |input: Input, argument| shapes.input(input).map(|_| argument);
    given(Input::QueryBounds, Input::QueryBounds.name()).or(given(Input::BiasTable, "grid"))
}

/// Returns the number of packed sequences; `None` if sequences are not packed.
fn sequences(shapes: &Shapes) -> Result<Option<usize>, OperatorError> {
    let of = |input: Input| shapes.given(input as usize, input.name()).map(|bounds| bounds.sequences());
    match (of(Input::QueryBounds).transpose()?, of(Input::KeyBounds).transpose()?) {
        (None, Some(_)) => Err(OperatorError::Missing {
            argument: Input::QueryBounds.name(),
            other: Input::KeyBounds.name(),
        }),
        (Some(wanted), Some(found)) => {
            let (argument, of) = (Input::KeyBounds.name(), Input::QueryBounds.name());
            same(argument, "entries", found + 1, wanted + 1, of)?;
            Ok(Some(wanted))
        }
        (packed, None) => Ok(packed),
    }
}

/// Derives the geometry of a call, and checks the shapes of its inputs.
///
/// # Errors
/// Returns an error that names the first input or attribute that does not match.
pub(crate) fn geometry(attributes: &Attributes, shapes: &Shapes) -> Result<Geometry, OperatorError> {
    let input =
        shapes.input(Input::Query).ok_or(OperatorError::Missing { argument: "Q", other: "the operator" })?;
    let dtype = float(input.element).ok_or_else(|| wrong_type(Input::Query, input, "f32 or f16"))?;
    if !matches!(input.rank, 3 | 4) {
        return Err(OperatorError::Rank { argument: "Q", found: input.rank, allowed: "3 or 4" });
    }
    let views = if attributes.packed {
        packed(attributes, shapes, input)?
    } else {
        separate(attributes, shapes, input)?
    };
    let Views { query, key, value, offsets } = views;
    let mask = mask(shapes, input)?;
    let [q, key, value] = repeated([query, key, value], mask.as_ref())?;
    if key.heads() > 0 && !q.heads().is_multiple_of(key.heads()) {
        let found = format!("{} heads for {} of Q", key.heads(), q.heads());
        return Err(OperatorError::Value { argument: "K", found, allowed: "a divisor of the heads of Q" });
    }
    let [batch, heads, tokens, _] = q.shape();
    let dim = value.dim();
    let width = heads.saturating_mul(dim);
    let (output, y) = match input.rank {
        4 => {
            let sizes = [batch, heads, tokens, dim];
            (View::dense("Y", Layout::Bhnd, &sizes, None)?, shape_of(input.element, &sizes))
        }
        _ => {
            let sizes = [batch, tokens, width];
            (View::dense("Y", Layout::Bnc, &sizes, Some(heads))?, shape_of(input.element, &sizes))
        }
    };
    let mut spec = Spec::new(dtype, q, key, value, output);
    spec.past_key = past(Input::PastKey, shapes, input)?;
    spec.past_value = past(Input::PastValue, shapes, input)?;
    let past = spec.past_tokens();
    let present = |of: View| {
        let sizes = [of.batch(), of.heads(), of.tokens().saturating_add(past), of.dim()];
        let view = View::dense("present_key", Layout::Bhnd, &sizes, None);
        view.map(|view| (view, shape_of(input.element, &sizes)))
    };
    let (present_key, present_value) = (present(key)?, present(value)?);
    let made = |output: Output| shapes.outputs[output as usize] && without_present(shapes).is_none();
    spec.present_key = made(Output::PresentKey).then_some(present_key.0);
    spec.present_value = made(Output::PresentValue).then_some(present_value.0);
    spec.scale = attributes.scale;
    spec.softcap = attributes.softcap;
    spec.window = attributes.window;
    spec.key_lengths = lengths(attributes, shapes, batch)?;
    let last = spec.key_lengths || attributes.align_last;
    let aligned = if last { Alignment::BottomRight } else { Alignment::TopLeft };
    spec.causal = attributes.causal.then_some(aligned);
    spec.mask = mask;
    // A mask may be shorter than the keys, as in ONNX.
    spec.short_mask = true;
    (spec.bias, spec.windows) = windows(attributes, shapes, input)?;
    let large = || elsa_core::argument::ArgumentError::TooLarge { argument: "Q", shape: q.shape() };
    spec.packed = sequences(shapes)?;
    let row = shape_of(FLOAT, &[batch, heads, tokens]).ok_or_else(large)?;
    let mut outputs = [row; OUTPUTS];
    outputs[Output::Y as usize] = y.ok_or_else(large)?;
    outputs[Output::PresentKey as usize] = present_key.1.ok_or_else(large)?;
    outputs[Output::PresentValue as usize] = present_value.1.ok_or_else(large)?;
    outputs[Output::StateWeighted as usize] =
        shape_of(FLOAT, &[batch, heads, tokens, dim]).ok_or_else(large)?;
    let placement = Placement { offsets, packed: attributes.packed };
    Ok(Geometry { problem: spec.check()?, placement, outputs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates sizes of real calls, and sizes that make products overflow.
    fn size() -> impl Strategy<Value = i64> {
        prop_oneof![
            8 => 0..5i64,
            2 => prop::sample::select(vec![8, 12, 24, 49]),
            1 => prop::sample::select(vec![-1, i64::MIN, i64::MAX, 1 << 31, 1 << 32, 1 << 62]),
        ]
    }

    fn shape() -> impl Strategy<Value = Option<TensorShape>> {
        let element =
            prop_oneof![6 => Just(FLOAT), 2 => Just(FLOAT16), 1 => Just(BOOL), 1 => Just(INT64), 1 => 0..30];
        let shape = (element, prop_oneof![4 => 3usize..5, 1 => 0usize..7], prop::array::uniform4(size()));
        prop::option::weighted(
            0.6,
            shape.prop_map(|(element, rank, dims)| TensorShape { element, rank, dims }),
        )
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        let side = || prop::sample::select(vec![0usize, 1, 2, 3, 4, 7, usize::MAX]);
        let sides = || prop::option::weighted(0.3, [side(), side()]);
        let heads = || prop::option::weighted(0.5, prop::sample::select(vec![1usize, 2, 3, 4, usize::MAX]));
        let window = prop::option::weighted(0.2, prop::sample::select(vec![0usize, 1, usize::MAX]));
        (
            (heads(), heads(), any::<[bool; 2]>(), any::<bool>()),
            (prop::option::weighted(0.2, any::<f32>()), prop::option::weighted(0.2, any::<f32>())),
            (sides(), sides(), sides(), window.clone(), window),
        )
            .prop_map(
                |((num_heads, kv_num_heads, [causal, align_last], packed), (scale, softcap), windows)| {
                    let (grid, picture, shift, left, right) = windows;
                    let window = Window { left, right };
                    Attributes {
                        num_heads,
                        kv_num_heads,
                        scale,
                        causal,
                        align_last,
                        softcap,
                        window,
                        grid,
                        picture,
                        shift,
                        packed,
                        ..Attributes::default()
                    }
                },
            )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        /// Checks that all shapes and attributes lead either to an error that names an argument, or to a problem that
        /// stays inside its tensors.
        #[test]
        fn any_shape_is_refused_or_stays_inside_its_tensors(
            attributes in attributes(),
            mut inputs in prop::array::uniform10(shape()),
            alike in any::<[bool; 3]>(),
            outputs in any::<[bool; 8]>(),
        ) {
            // Half of the calls have keys and values with the shape of the queries.
            if alike[0] {
                (inputs[1], inputs[2]) = (inputs[0], inputs[0]);
            }
            for (i, alike) in [(3..5, alike[1]), (5..10, alike[2])] {
                if alike {
                    inputs[i].fill(None);
                }
            }
            let shapes = Shapes { inputs, outputs };
            match geometry(&attributes, &shapes) {
                Err(e) => prop_assert!(e.to_string().contains("; allowed: "), "{e}"),
                Ok(geometry) => {
                    let count = |input: Input| {
                        let shape = shapes.input(input);
                        shape.map_or(0, |shape| shape.dims().iter().map(|dim| *dim as usize).product())
                    };
                    let spec = geometry.problem.spec();
                    let views = [(Input::Query, spec.query), (Input::Key, spec.key), (Input::Value, spec.value)];
                    for (input, view) in views {
                        let from = if geometry.placement.packed { Input::Query } else { input };
                        let end = geometry.placement.offsets[input as usize] + view.extent();
                        prop_assert!(view.extent() == 0 || end <= count(from), "{input:?}");
                    }
                    for (input, view) in [(Input::PastKey, spec.past_key), (Input::PastValue, spec.past_value)] {
                        prop_assert_eq!(view.map_or(0, |view| view.extent()), count(input));
                    }
                    prop_assert_eq!(spec.mask.map_or(0, |mask| mask.extent()), count(Input::Mask));
                    prop_assert_eq!(spec.bias.map_or(0, |bias| bias.extent()), count(Input::BiasTable));
                    let y: i64 = geometry.outputs[0].dims().iter().product();
                    prop_assert_eq!(spec.output.extent() as i64, y);
                }
            }
        }
    }

    #[test]
    fn an_ordinary_call_is_taken() {
        let of = |element, dims: &[i64]| {
            let mut shape = TensorShape { element, rank: dims.len(), dims: [0; 4] };
            shape.dims[..dims.len()].copy_from_slice(dims);
            Some(shape)
        };
        let mut shapes = Shapes::default();
        shapes.inputs[0] = of(FLOAT, &[2, 12, 3 * 64]);
        let attributes = Attributes { packed: true, num_heads: Some(4), ..Attributes::default() };
        let geometry = geometry(&attributes, &shapes).unwrap();
        assert_eq!(geometry.placement.offsets, [0, 64, 128]);
        assert_eq!(geometry.outputs[0].dims(), [2, 12, 64]);
        assert_eq!(geometry.problem.spec().key.strides(), [12 * 192, 16, 192, 1]);
    }

    fn shaped(inputs: &[(Input, &[i64])]) -> Shapes {
        let mut shapes = Shapes::default();
        for (input, dims) in inputs {
            let element = if *input == Input::Mask { BOOL } else { FLOAT };
            let mut shape = TensorShape { element, rank: dims.len(), dims: [0; 4] };
            shape.dims[..dims.len()].copy_from_slice(dims);
            shapes.inputs[*input as usize] = Some(shape);
        }
        shapes
    }

    #[test]
    fn an_axis_of_one_is_repeated() {
        use Input::{Key, Mask, Query, Value};
        let of = |attributes: &Attributes, inputs: &[(Input, &[i64])]| geometry(attributes, &shaped(inputs));
        let plain = Attributes::default();
        let found =
            of(&plain, &[(Query, &[3, 4, 5, 8]), (Key, &[1, 4, 7, 8]), (Value, &[1, 4, 7, 6])]).unwrap();
        assert_eq!(found.outputs[0].dims(), [3, 4, 5, 6]);
        assert_eq!(found.problem.spec().key.strides(), [0, 56, 8, 1]);
        // One query is broadcast to the batch and the heads of the keys, and to the rows of the mask.
        let masked =
            [(Query, &[1, 1, 1, 8][..]), (Key, &[2, 4, 7, 8]), (Value, &[2, 4, 7, 8]), (Mask, &[1, 1, 5, 7])];
        assert_eq!(of(&plain, &masked).unwrap().outputs[0].dims(), [2, 4, 5, 8]);
        let rows = Attributes { num_heads: Some(2), ..plain };
        let found = of(&rows, &[(Query, &[3, 5, 16]), (Key, &[1, 7, 16]), (Value, &[1, 7, 16])]).unwrap();
        assert_eq!(found.outputs[0].dims(), [3, 5, 16]);
        assert_eq!(found.problem.spec().value.strides()[0], 0);
        let two = of(&plain, &[(Query, &[3, 4, 5, 8]), (Key, &[2, 4, 7, 8]), (Value, &[2, 4, 7, 8])]);
        assert!(two.unwrap_err().to_string().contains("batch 2"));
    }

    #[test]
    fn the_diagonal_begins_at_the_first_key_or_ends_at_the_last() {
        use Input::{Key, Query, Value};
        use elsa_core::attention::Lengths;
        let shapes = shaped(&[(Query, &[1, 2, 3, 8]), (Key, &[1, 2, 7, 8]), (Value, &[1, 2, 7, 8])]);
        let offset = |align_last| {
            let attributes = Attributes { causal: true, align_last, ..Attributes::default() };
            let geometry = geometry(&attributes, &shapes).unwrap();
            geometry.problem.sequence(&Lengths::default(), 0).offset()
        };
        assert_eq!([false, true].map(offset), [0, 4]);
    }

    #[test]
    fn a_batch_of_no_sequence_has_the_shapes_of_one() {
        use Input::{Key, Mask, Query, Value};
        let inputs =
            [(Query, &[0, 4, 5, 8][..]), (Key, &[0, 4, 7, 8]), (Value, &[1, 4, 7, 8]), (Mask, &[5, 7])];
        let one = of_no_sequence(&shaped(&inputs)).unwrap();
        let geometry = geometry(&Attributes::default(), &one).unwrap();
        assert_eq!(geometry.outputs[0].dims(), [1, 4, 5, 8]);
        assert_eq!(one.input(Mask).unwrap().dims(), [5, 7]);
        let two = [(Query, &[0, 4, 5, 8][..]), (Key, &[2, 4, 7, 8]), (Value, &[2, 4, 7, 8])];
        assert!(of_no_sequence(&shaped(&two)).is_none());
        assert!(of_no_sequence(&shaped(&[(Query, &[1, 4, 5, 8])])).is_none());
    }
}
