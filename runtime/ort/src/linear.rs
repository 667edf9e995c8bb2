//! `ElsaLinearAttention`: linear attention, whose memory is a state of fixed size. The rule follows from the inputs: with
//! `decay` it has gates, with `beta` it is a delta rule.

use crate::attributes::{Node, heads, integer, number, value};
use crate::error::OperatorError;
use crate::operation::{self, DeviceOf, HostOf, Operation};
use crate::shapes::{FLOAT, Given, Shapes, output, outputs};
use crate::signature::{Declared, Parameter, Signature};
use crate::tensors::Addresses;
use elsa_core::argument::ArgumentError;
use elsa_core::linear::{Direction, Inputs, Operand, Outputs, Problem, Rule, Spec};
use elsa_core::view::{Layout, View};
use elsa_runtime::{
    Engine, Linear, LinearDeviceInputs, LinearDeviceOutputs, LinearPlan, LinearPlanOptions, PlanError,
};

/// Linear attention.
pub(crate) struct LinearAttention;

/// The attributes of a node. Each value has been checked against its allowed range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Attributes {
    num_heads: Option<usize>,
    kv_num_heads: Option<usize>,
    scale: Option<f32>,
    normalize: Option<f32>,
    direction: Direction,
}

/// Index of the input with the bounds of packed sequences.
const BOUNDS: usize = 6;
/// Index of the output with the last states.
const PRESENT: usize = 1;

/// Returns the view of an input with the rank `rank` of `q`. In a tensor of rank 3, `heads` returns the number of heads
/// of a row of the given width.
fn view(given: &Given<'_>, rank: usize, heads: impl FnOnce(usize) -> usize) -> Result<View, OperatorError> {
    if given.shape.rank != rank {
        return Err(given.wrong_rank("that of q"));
    }
    let sizes = given.sizes()?;
    Ok(match rank {
        3 => View::dense(given.argument, Layout::Bnc, &sizes[..3], Some(heads(sizes[2])))?,
        _ => View::dense(given.argument, Layout::Bhnd, &sizes, None)?,
    })
}

/// Checks the heads of a tensor whose number of heads an attribute may state.
fn check_heads(
    given: &Given<'_>,
    view: &View,
    stated: Option<usize>,
    of: &'static str,
) -> Result<(), OperatorError> {
    let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    match stated {
        Some(heads) if view.heads() != heads => Err(OperatorError::Size {
            argument: given.argument,
            axis: "heads",
            found: size(view.heads()),
            allowed: size(heads),
            of,
        }),
        _ => Ok(()),
    }
}

impl Attributes {
    /// Returns the numbers of query heads and of states for tensors of rank `rank`; 1 if the tensors themselves have an
    /// axis of heads.
    fn heads(&self, rank: usize) -> Result<[usize; 2], OperatorError> {
        match (rank, self.num_heads) {
            (3, Some(heads)) => Ok([heads, self.kv_num_heads.unwrap_or(heads)]),
            (3, None) => Err(OperatorError::Missing { argument: "num_heads", other: "q of rank 3" }),
            _ => Ok([1, 1]),
        }
    }
}

impl Operation for LinearAttention {
    type Engine = Linear;
    type Attributes = Attributes;
    type Placement = ();

    const SIGNATURE: &'static Signature = &Signature {
        name: c"ElsaLinearAttention",
        // In the order of the engine's operands, which are looked up by their numbers.
        inputs: &[
            Parameter::required(Operand::Query.argument(), Declared::Main),
            Parameter::required(Operand::Key.argument(), Declared::Main),
            Parameter::required(Operand::Value.argument(), Declared::Main),
            Parameter::optional(Operand::Decay.argument(), Declared::Any),
            Parameter::optional(Operand::Beta.argument(), Declared::Any),
            Parameter::optional(Operand::PastState.argument(), Declared::Any),
            Parameter::optional("cu_seqlens", Declared::OnHost),
        ],
        outputs: &[
            Parameter::required(Operand::Output.argument(), Declared::Main),
            Parameter::optional(Operand::PresentState.argument(), Declared::F32),
        ],
    };

    fn attributes(node: &impl Node) -> Result<Attributes, OperatorError> {
        let allowed = "0 forward, 1 reverse, 2 bidirectional or 3 non-causal";
        let direction = match integer(node, c"direction", allowed)? {
            None => Direction::Forward,
            Some(found) => {
                let at = usize::try_from(found).ok().and_then(|at| Direction::ALL.get(at));
                *at.ok_or_else(|| value(c"direction", found, allowed))?
            }
        };
        Ok(Attributes {
            num_heads: heads(node, c"num_heads")?,
            kv_num_heads: heads(node, c"kv_num_heads")?,
            scale: number(node, c"scale", "a finite number")?,
            normalize: number(node, c"normalize", "a finite number of at least 0")?,
            direction,
        })
    }

    fn geometry(
        attributes: &Attributes,
        shapes: &Shapes,
    ) -> Result<operation::Geometry<Problem>, OperatorError> {
        let required = |operand: Operand| shapes.required(operand as usize, operand.argument());
        let optional = |operand: Operand| shapes.given(operand as usize, operand.argument());
        let (q, k, v) = (required(Operand::Query)?, required(Operand::Key)?, required(Operand::Value)?);
        let (dtype, rank) = (q.float()?, q.shape.rank);
        if !matches!(rank, 3 | 4) {
            return Err(q.wrong_rank("3 or 4"));
        }
        for given in [&k, &v] {
            if given.shape.element != q.shape.element {
                return Err(given.wrong_type("that of q"));
            }
        }
        let [heads, states] = attributes.heads(rank)?;
        let query = view(&q, rank, |_| heads)?;
        if query.dim() == 0 {
            return Err(ArgumentError::Zero { argument: q.argument, axis: "head size" }.into());
        }
        let key = view(&k, rank, |width| width / query.dim())?;
        let value = view(&v, rank, |_| states)?;
        check_heads(&q, &query, attributes.num_heads, "num_heads")?;
        check_heads(&v, &value, attributes.kv_num_heads, "kv_num_heads")?;
        let states = value.heads();
        let [batch, heads, tokens, _] = query.shape();
        let (heads, dim) = (heads.max(states), value.dim());
        let sizes = [batch, heads, tokens, dim];
        let rows = [batch, tokens, heads.saturating_mul(dim)];
        let (layout, sizes, by) = match rank {
            3 => (Layout::Bnc, &rows[..], Some(heads)),
            _ => (Layout::Bhnd, &sizes[..], None),
        };
        let out = Operand::Output.argument();
        let mut spec = Spec::new(dtype, query, key, value, View::dense(out, layout, sizes, by)?);
        if let Some(decay) = optional(Operand::Decay) {
            spec.gate_dtype = decay.float()?;
            spec.decay = Some(view(&decay, rank, |_| states)?);
        }
        if let Some(beta) = optional(Operand::Beta) {
            let dtype = beta.float()?;
            if spec.decay.is_some() && dtype != spec.gate_dtype {
                return Err(beta.wrong_type("that of decay"));
            }
            spec.gate_dtype = dtype;
            // Rates have one element for each head, or one for all heads.
            spec.beta = Some(view(&beta, rank, |width| width)?);
        }
        spec.rule = match (spec.decay.is_some(), spec.beta.is_some()) {
            (false, false) => Rule::Linear,
            (true, false) => Rule::Gated,
            (false, true) => Rule::Delta,
            (true, true) => Rule::GatedDelta,
        };
        let bounds = shapes.given(BOUNDS, "cu_seqlens");
        spec.packed = bounds.map(|bounds| bounds.sequences()).transpose()?;
        let (sequences, of) = spec.packed.map_or((batch, "q"), |sequences| (sequences, "cu_seqlens"));
        let kept = [sequences, states, query.dim(), dim];
        if let Some(past) = optional(Operand::PastState) {
            let axes = ["batch", "heads", "d_k", "d_v"];
            let of = [of, "v", "q", "v"];
            let wanted = std::array::from_fn(|i| (axes[i], kept[i], of[i]));
            past.check_f32::<4>("4: batch, heads, d_k, d_v", wanted)?;
            spec.past_state = Some(View::dense(past.argument, Layout::Bhnd, &kept, None)?);
        }
        let present = Operand::PresentState.argument();
        let view = View::dense(present, Layout::Bhnd, &kept, None)?;
        spec.present_state = shapes.outputs[PRESENT].then_some(view);
        spec.scale = attributes.scale;
        spec.normalize = attributes.normalize;
        spec.direction = attributes.direction;
        let outputs = outputs([output(out, q.shape.element, sizes)?, output(present, FLOAT, &kept)?]);
        Ok(operation::Geometry { problem: spec.check()?, placement: (), outputs })
    }

    fn plan(engine: &Engine, _: &Attributes, problem: &Problem) -> Result<LinearPlan, PlanError> {
        // The runtime cuts no sequence, and a model that does passes states.
        engine.linear_plan(problem, &LinearPlanOptions::default().whole(true))
    }

    unsafe fn host<'a>(_: &'a operation::Geometry<Problem>, given: &Addresses<'a>) -> HostOf<'a, Self> {
        // SAFETY: the clause of this function. Each output is taken once.
        unsafe {
            let inputs = Inputs {
                query: given.elements(Operand::Query as usize).unwrap_or_default(),
                key: given.elements(Operand::Key as usize).unwrap_or_default(),
                value: given.elements(Operand::Value as usize).unwrap_or_default(),
                decay: given.elements(Operand::Decay as usize),
                beta: given.elements(Operand::Beta as usize),
                past_state: given.numbers(Operand::PastState as usize),
                cu_seqlens: given.integers(BOUNDS),
            };
            let outputs =
                Outputs { output: given.elements_mut(0), present_state: given.numbers_mut(PRESENT) };
            (inputs, outputs)
        }
    }

    unsafe fn device<'a>(_: &'a operation::Geometry<Problem>, given: &Addresses<'a>) -> DeviceOf<'a, Self> {
        let inputs = LinearDeviceInputs {
            query: given.device(Operand::Query as usize).unwrap_or_default(),
            key: given.device(Operand::Key as usize).unwrap_or_default(),
            value: given.device(Operand::Value as usize).unwrap_or_default(),
            decay: given.device(Operand::Decay as usize),
            beta: given.device(Operand::Beta as usize),
            past_state: given.device(Operand::PastState as usize),
            // SAFETY: the clause of this function; the bounds are in host memory.
            cu_seqlens: unsafe { given.integers(BOUNDS) },
        };
        let outputs = LinearDeviceOutputs {
            output: given.device_output(0),
            present_state: given.device_output(PRESENT),
        };
        (inputs, outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TensorShape;
    use crate::attributes::fake::{Fake, Integer, Number};
    use crate::shapes::{FLOAT16, count, tests::shaped};
    use proptest::prelude::*;

    /// Generates sizes of real calls, and sizes that make products overflow.
    fn size() -> impl Strategy<Value = i64> {
        prop_oneof![
            12 => 0..5i64,
            1 => prop::sample::select(vec![-1, i64::MIN, i64::MAX, 1 << 31, 1 << 32, 1 << 62]),
        ]
    }

    /// Generates an input. In `usual` calls, its shape is that of the queries, perhaps with a last axis of 1.
    fn shape() -> impl Strategy<Value = (Option<TensorShape>, bool)> {
        let element = prop_oneof![8 => Just(FLOAT), 1 => Just(FLOAT16), 1 => 0..30];
        let shape = (element, prop_oneof![6 => 3usize..5, 1 => 0usize..7], prop::array::uniform4(size()));
        let shape = shape.prop_map(|(element, rank, dims)| TensorShape { element, rank, dims });
        (prop::option::weighted(0.7, shape), any::<bool>())
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        let heads = || prop::option::weighted(0.6, prop::sample::select(vec![1usize, 2, 3, usize::MAX]));
        let number = || prop::option::weighted(0.2, any::<f32>());
        (heads(), heads(), number(), number(), prop::sample::select(Direction::ALL.to_vec())).prop_map(
            |(num_heads, kv_num_heads, scale, normalize, direction)| Attributes {
                num_heads,
                kv_num_heads,
                scale,
                normalize,
                direction,
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
            inputs in prop::array::uniform10(shape()),
            usual in prop::bool::weighted(0.7),
            outputs in any::<[bool; 8]>(),
        ) {
            let query = inputs[0].0;
            let inputs = std::array::from_fn(|i| {
                let (own, whole) = inputs[i];
                match query.filter(|_| usual && i < 5) {
                    Some(mut shape) if i < 3 || own.is_some() => {
                        if i >= 3 && !whole && (1..=4).contains(&shape.rank) {
                            shape.dims[shape.rank - 1] = 1;
                        }
                        Some(shape)
                    }
                    Some(_) => None,
                    None => own,
                }
            });
            let shapes = Shapes { inputs, outputs };
            match LinearAttention::geometry(&attributes, &shapes) {
                Err(e) => prop_assert!(e.to_string().contains("; allowed: "), "{e}"),
                Ok(geometry) => {
                    let problem = &geometry.problem;
                    let elements = |operand| problem.memory(operand).map(|memory| memory.elements);
                    for operand in Operand::ALL.into_iter().take(6) {
                        prop_assert_eq!(elements(operand), shapes.input(operand as usize).map(count));
                    }
                    prop_assert_eq!(elements(Operand::Output), Some(count(&geometry.outputs[0])));
                    let present = outputs[PRESENT].then(|| count(&geometry.outputs[PRESENT]));
                    prop_assert_eq!(elements(Operand::PresentState), present);
                }
            }
        }
    }

    #[test]
    fn inputs_determine_the_rule() {
        let of = |decay: &'static [i64], beta: &'static [i64]| {
            let attributes = LinearAttention::attributes(&Fake(&[
                (c"num_heads", Integer(4)),
                (c"kv_num_heads", Integer(2)),
            ]));
            let shapes = shaped(&[&[3, 5, 32], &[3, 5, 8], &[3, 5, 12], decay, beta, &[3, 2, 8, 6]]);
            LinearAttention::geometry(&attributes.unwrap(), &shapes).unwrap()
        };
        for (decay, beta, rule) in [
            (&[][..], &[][..], Rule::Linear),
            (&[3, 5, 2], &[], Rule::Gated),
            (&[3, 5, 16], &[], Rule::Gated),
            (&[], &[3, 5, 1], Rule::Delta),
            (&[3, 5, 2], &[3, 5, 2], Rule::GatedDelta),
        ] {
            let geometry = of(decay, beta);
            let spec = geometry.problem.spec();
            assert_eq!((spec.rule, spec.key.heads(), spec.value.heads()), (rule, 1, 2));
            assert_eq!(geometry.outputs[0].dims(), [3, 5, 24]);
            assert_eq!(geometry.outputs[1].dims(), [3, 2, 8, 6]);
        }
    }

    #[test]
    fn calls_that_do_not_fit_are_refused_by_name() {
        let of = |inputs: &[&[i64]]| {
            let attributes = LinearAttention::attributes(&Fake(&[(c"num_heads", Integer(2))])).unwrap();
            LinearAttention::geometry(&attributes, &shaped(inputs)).unwrap_err().to_string()
        };
        let (q, whole): (&[i64], &[i64]) = (&[1, 5, 8], &[1, 2, 5, 4]);
        for (inputs, says) in [
            (&[][..], "q: absent; allowed: given"),
            (&[q, q][..], "v: absent; allowed: given"),
            (&[&[5, 8], q, q], "q: rank 2; allowed: 3 or 4"),
            (&[q, whole, q], "k: rank 4; allowed: that of q"),
            (&[q, &[1, 4, 8], q], "k: tokens 4; allowed: 5, as q has"),
            (&[whole, whole, whole, &[1, 2, 5, 3]], "decay: head size 3; allowed: 4, as q has"),
            (&[whole, whole, whole, &[], &[1, 3, 5, 1]], "beta: heads 3; allowed: 2, as v has"),
            (&[whole, whole, whole, &[], &[], &[1, 2, 4, 5]], "past_state: d_v 5; allowed: 4, as v has"),
            (&[&[1, 3, 5, 4], whole, whole], "q: heads 3; allowed: 2, as num_heads says"),
        ] {
            let found = of(inputs);
            assert!(found.starts_with(says), "{found}\n{says}");
        }
        for (node, says) in [
            (Fake(&[(c"direction", Integer(4))]), "direction: 4; allowed: 0 forward"),
            (Fake(&[(c"direction", Number(1.0))]), "direction: an attribute of another type; allowed: "),
            (Fake(&[(c"normalize", Number(f32::NAN))]), "normalize: NaN; allowed: a finite number"),
        ] {
            let found = LinearAttention::attributes(&node).unwrap_err().to_string();
            assert!(found.starts_with(says), "{found}\n{says}");
        }
    }
}
