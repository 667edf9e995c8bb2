//! Random problems of linear attention: sizes on the command line, and tensors for them.

use super::args::SemanticsArgs;
use crate::error::Error;
use crate::random::Random;
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::{DType, Elements};
use elsa_core::linear::{Direction, Inputs, Problem, Rule, Spec};
use elsa_core::view::{Layout, View};
use elsa_files::{Buffer, zeros};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Placeholder for the sizes in help texts.
pub const VALUE: &str = "B,H,T,DK[,DV][,v=HV][,k=HK]";

/// The sizes of a problem with dense tensors `[batch, heads, tokens, dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// Number of sequences.
    pub batch: usize,
    /// Number of heads of queries.
    pub heads: usize,
    /// Number of heads of keys.
    pub key_heads: usize,
    /// Number of heads of values. Each of these heads has a state.
    pub states: usize,
    /// Number of tokens per sequence.
    pub tokens: usize,
    /// Head size of queries and keys.
    pub dim: usize,
    /// Head size of values.
    pub value_dim: usize,
}

impl Display for LinearShape {
    /// Writes the sizes in the notation of the command line.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let LinearShape { batch, heads, key_heads, states, tokens, dim, value_dim } = self;
        write!(f, "{batch},{heads},{tokens},{dim},{value_dim},v={states},k={key_heads}")
    }
}

impl FromStr for LinearShape {
    type Err = String;

    fn from_str(text: &str) -> Result<LinearShape, String> {
        let allowed = || format!("allowed: {VALUE}, whole numbers from 1");
        let number = |text: &str| text.trim().parse().ok().filter(|n: &usize| *n > 0).ok_or_else(allowed);
        let (mut sizes, mut states, mut key_heads) = (Vec::new(), None, None);
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("v", n)) => states = Some(number(n)?),
                Some(("k", n)) => key_heads = Some(number(n)?),
                Some(_) => return Err(allowed()),
                None => sizes.push(number(part)?),
            }
        }
        let (batch, heads, tokens, dim, value_dim) = match sizes[..] {
            [batch, heads, tokens, dim] => (batch, heads, tokens, dim, dim),
            [batch, heads, tokens, dim, value_dim] => (batch, heads, tokens, dim, value_dim),
            _ => return Err(allowed()),
        };
        let states = states.unwrap_or(heads);
        let key_heads = key_heads.unwrap_or(heads.min(states));
        Ok(LinearShape { batch, heads, key_heads, states, tokens, dim, value_dim })
    }
}

/// Semantics of a problem with random tensors.
#[derive(Clone, Copy, Debug)]
pub struct Semantics {
    /// The rule.
    pub rule: Rule,
    /// `true` if each dim of the keys has its own gate.
    pub per_dim: bool,
    /// Order in which tokens update the state.
    pub direction: Direction,
    /// Scale of the output; `None` for the default.
    pub scale: Option<f32>,
    /// Term added to the sum of squares when queries and keys are normalised; `None` if they are not.
    pub normalize: Option<f32>,
    /// `true` to write the states after the last token, if the direction has such states.
    pub states: bool,
}

impl Semantics {
    /// Returns the default semantics of a rule.
    #[must_use]
    pub fn of_rule(rule: Rule) -> Semantics {
        Semantics {
            rule,
            per_dim: false,
            direction: Direction::Forward,
            scale: None,
            normalize: None,
            states: false,
        }
    }

    /// Builds the semantics from the flags.
    #[must_use]
    pub fn of(args: &SemanticsArgs, per_dim: bool) -> Semantics {
        let SemanticsArgs { rule, scale, normalize, .. } = *args;
        Semantics { rule, per_dim, direction: args.order.direction(), scale, normalize, states: false }
    }
}

/// A random problem and its tensors, which are the same in every run.
///
/// Keys and queries are unit vectors of random direction, and values are standard normal. Gates `a` and rates `β` are
/// logistic functions of normal numbers: gates are around 0.88, and rates around 0.5.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The checked problem.
    pub problem: Problem,
    query: Buffer,
    key: Buffer,
    value: Buffer,
    decay: Option<Vec<f32>>,
    beta: Option<Vec<f32>>,
}

/// Mean of the normally distributed numbers x in the gates `a = 1 / (1 + e^-x)`.
const GATE: f64 = 2.0;

impl Sample {
    /// Draws tensors for a problem of `shape`.
    ///
    /// # Errors
    /// Returns an error if the sizes do not form a valid problem, or if the system refuses memory.
    pub fn new(shape: &LinearShape, semantics: &Semantics, dtype: DType) -> Result<Sample, Error> {
        let problem = spec(shape, semantics, dtype).and_then(Spec::check);
        let problem = problem.map_err(|fault| Error::Problem(fault.renamed(|_| "shape")))?;
        let spec = problem.spec();
        let mut random = Random::new(3);
        let argument = "shape";
        let query = unit(random.normals(argument, dtype, spec.query.extent(), 1.0)?, shape.dim);
        let key = unit(random.normals(argument, dtype, spec.key.extent(), 1.0)?, shape.dim);
        let value = random.normals(argument, dtype, spec.value.extent(), 1.0)?;
        let mut made = |view: Option<View>, of: fn(f64) -> f64| -> Result<Option<Vec<f32>>, Error> {
            let Some(view) = view else { return Ok(None) };
            let mut data = zeros::<f32>(argument, view.extent())?;
            data.iter_mut().for_each(|x| *x = of(random.normal()) as f32);
            Ok(Some(data))
        };
        let decay = made(spec.decay, |x| -(-(x + GATE)).exp().ln_1p())?;
        let beta = made(spec.beta, |x| 1.0 / (1.0 + (-x).exp()))?;
        Ok(Sample { problem, query, key, value, decay, beta })
    }

    /// Returns the input tensors of a call.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            decay: self.decay.as_deref().map(Elements::F32),
            beta: self.beta.as_deref().map(Elements::F32),
            ..Inputs::new(self.query.elements(), self.key.elements(), self.value.elements())
        }
    }
}

/// Builds the problem of `shape`, without checking it.
fn spec(shape: &LinearShape, semantics: &Semantics, dtype: DType) -> Result<Spec, ArgumentError> {
    let LinearShape { batch, heads, key_heads, states, tokens, dim, value_dim } = *shape;
    let view = |name, heads, dim| View::dense(name, Layout::Bhnd, &[batch, heads, tokens, dim], None);
    let (query, key, value) =
        (view("q", heads, dim)?, view("k", key_heads, dim)?, view("v", states, value_dim)?);
    let mut spec = Spec::new(dtype, query, key, value, view("out", heads.max(states), value_dim)?);
    let Semantics { rule, per_dim, direction, scale, normalize, states: last } = *semantics;
    if rule.is_gated() {
        spec.decay = Some(view("decay", states, if per_dim { dim } else { 1 })?);
    }
    if rule.is_delta() {
        spec.beta = Some(view("beta", states, 1)?);
    }
    if last && direction != Direction::Bidirectional {
        spec.present_state = Some(View::dense("out", Layout::Bhnd, &[batch, states, dim, value_dim], None)?);
    }
    (spec.rule, spec.direction, spec.scale, spec.normalize) = (rule, direction, scale, normalize);
    Ok(spec)
}

/// Scales each row of `dim` elements to the Euclidean norm one.
fn unit(mut buffer: Buffer, dim: usize) -> Buffer {
    let mut elements = buffer.elements_mut();
    for start in (0..elements.len()).step_by(dim.max(1)) {
        let row = start..start + dim;
        let norm = row.clone().map(|i| f64::from(elements.elements().get(i)).powi(2)).sum::<f64>().sqrt();
        for i in row {
            let x = f64::from(elements.elements().get(i)) / norm;
            elements.set(i, x as f32);
        }
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        let shape = |text: &str| text.parse::<LinearShape>();
        let plain =
            LinearShape { batch: 1, heads: 8, key_heads: 8, states: 8, tokens: 40, dim: 16, value_dim: 16 };
        assert_eq!(shape("1,8,40,16"), Ok(plain));
        assert_eq!(shape("1,8,40,16,24"), Ok(LinearShape { value_dim: 24, ..plain }));
        assert_eq!(shape("1,8,40,16,v=2"), Ok(LinearShape { states: 2, key_heads: 2, ..plain }));
        let shared = LinearShape { heads: 4, key_heads: 4, ..plain };
        assert_eq!(shape("1,4,40,16,16,v=8,k=4"), Ok(shared));
        for wrong in ["", "1,8,40", "1,8,40,16,24,3", "1,8,0,16", "1,8,40,x", "1,8,40,16,w=2", "1,8,40,16,v="]
        {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn samples_are_valid_problems_with_contracting_keys() {
        for rule in Rule::ALL {
            let semantics = Semantics { per_dim: rule.is_gated(), ..Semantics::of_rule(rule) };
            let sample = Sample::new(&"2,4,9,8,6,v=2".parse().unwrap(), &semantics, DType::F32).unwrap();
            sample.inputs().check(&sample.problem).unwrap();
            for row in 0..2 * 2 * 9 {
                let norm: f64 =
                    (0..8).map(|i| f64::from(sample.key.elements().get(row * 8 + i)).powi(2)).sum();
                assert!((norm - 1.0).abs() < 1e-6, "{norm}");
            }
            let inside = |data: &Option<Vec<f32>>, low: f32, high: f32| {
                data.as_ref().is_none_or(|data| data.iter().all(|x| (low..=high).contains(x)))
            };
            assert!(inside(&sample.decay, -5.0, 0.0) && inside(&sample.beta, 0.0, 1.0));
            assert_eq!((sample.decay.is_some(), sample.beta.is_some()), (rule.is_gated(), rule.is_delta()));
        }
        let wrong =
            Sample::new(&"1,4,9,8,8,v=3".parse().unwrap(), &Semantics::of_rule(Rule::Linear), DType::F32);
        assert!(wrong.is_err_and(|e| e.status() == 2 && e.to_string().starts_with("--shape: ")));
    }
}
