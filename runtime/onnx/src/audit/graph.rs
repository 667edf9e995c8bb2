//! Models with more nodes, inputs and outputs than the model under audit.
//!
//! A *switch* rounds a tensor to f16 if a flag is set, and otherwise leaves it unchanged. The flags are inputs of the
//! model, so one session computes every choice of nodes in f16. A pair of Casts would be shorter, but some versions of
//! ONNX Runtime remove a Cast to f16 that a Cast to f32 follows. A switch therefore rounds by arithmetic in f32:
//!
//! ```text
//! normal       c = 8193 x,  c - (c - x)          8193 = 2^13 + 1 leaves the 11 leading bits of x
//! subnormal    (x + 0.75) - 0.75                 below 2^-14; the last bit of numbers near 0.75 is 2^-24
//! too large    3e38 x                            from 65520 on, so that the sign of the infinity is that of x
//! ```

use super::super::array::{Array, Kind};
use super::super::model::Model;
use super::super::node::Node;
use super::super::wire::{self, WireError, Writer};
use super::super::write::{self, ModelBytes};
use std::collections::HashMap;

/// Factor that splits the 24 bits of an f32 into 11 and 13.
const SPLIT: f64 = 8193.0;
/// Number near which the last bit of an f32 is that of a subnormal f16.
const NEAR: f64 = 0.75;
/// Smallest normal f16.
const NORMAL: f64 = 6.103_515_625e-5;
/// Smallest number that f16 rounds to infinity.
const BEYOND: f64 = 65_520.0;
/// Factor that makes numbers from [`BEYOND`] on infinite.
const HUGE: f64 = 3e38;

/// Changes of a model's graph.
#[derive(Default)]
pub struct Extension {
    /// Nodes before all others.
    pub first: Vec<Node>,
    /// Names of the inputs and outputs of nodes by index, where they change.
    pub names: HashMap<usize, [Vec<String>; 2]>,
    /// Nodes that follow the node with an index.
    pub after: HashMap<usize, Vec<Node>>,
    /// Nodes after all others.
    pub last: Vec<Node>,
    /// New constants.
    pub constants: Vec<(String, Array)>,
    /// New inputs, each one boolean.
    pub flags: Vec<String>,
    /// Tensors that become outputs.
    pub outputs: Vec<String>,
}

impl Extension {
    /// Adds the nodes of a switch from the tensor `from` to the new tensor `to`, with the flag `flag`. `prefix` begins
    /// the names of the constants, which [`Extension::add_constants`] adds, and of the tensors between.
    #[must_use]
    pub fn switch(prefix: &str, from: &str, to: &str, flag: &str) -> Vec<Node> {
        let inner = |what: &str| format!("{flag}_{what}");
        let constant = |what: &str| format!("{prefix}_{what}");
        let node = |op: &str, inputs: &[&str], output: String| Node {
            name: format!("{output}_node"),
            op: op.to_owned(),
            inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
            outputs: vec![output],
            ..Node::default()
        };
        let names =
            ["product", "rest", "normal", "sum", "subnormal", "size", "small", "finite", "infinite", "fits"];
        let [product, rest, normal, sum, subnormal, size, small, finite, infinite, fits] = names.map(inner);
        let half = inner("half");
        vec![
            node("Mul", &[from, &constant("split")], product.clone()),
            node("Sub", &[&product, from], rest.clone()),
            node("Sub", &[&product, &rest], normal.clone()),
            node("Add", &[from, &constant("near")], sum.clone()),
            node("Sub", &[&sum, &constant("near")], subnormal.clone()),
            node("Abs", &[from], size.clone()),
            node("Less", &[&size, &constant("least")], small.clone()),
            node("Where", &[&small, &subnormal, &normal], finite.clone()),
            node("Mul", &[from, &constant("huge")], infinite.clone()),
            node("Less", &[&size, &constant("beyond")], fits.clone()),
            node("Where", &[&fits, &finite, &infinite], half.clone()),
            node("Where", &[flag, &half, from], to.to_owned()),
        ]
    }

    /// Adds the constants of switches.
    pub fn add_constants(&mut self, prefix: &str) {
        let all = [("split", SPLIT), ("near", NEAR), ("least", NORMAL), ("huge", HUGE), ("beyond", BEYOND)];
        let constant = |(what, x)| (format!("{prefix}_{what}"), Array::new(Kind::F32, vec![], vec![x]));
        self.constants.extend(all.map(constant));
    }

    /// Returns the bytes of the model with these changes.
    ///
    /// # Errors
    /// Returns no error for a model that [`Model::read`] has read.
    pub fn bytes(&self, model: &Model<'_>) -> Result<Vec<u8>, WireError> {
        let file = model.file;
        let mut body = ModelBytes::new(file);
        let add = |body: &mut ModelBytes<'_>, nodes: &[Node]| {
            nodes.iter().for_each(|node| body.bytes(1, &write::message(node)));
        };
        add(&mut body, &self.first);
        let mut n = 0;
        for field in wire::fields(file, model.graph.range.clone())? {
            if field.number != 1 {
                body.keep(field.span);
                continue;
            }
            match self.names.get(&n) {
                Some(names) => body.bytes(1, &renamed(file, field.bytes()?, names)?),
                None => body.keep(field.span.clone()),
            }
            add(&mut body, self.after.get(&n).map_or(&[][..], Vec::as_slice));
            n += 1;
        }
        add(&mut body, &self.last);
        self.constants.iter().for_each(|(name, array)| body.bytes(5, &write::constant(name, array)));
        self.flags.iter().for_each(|name| body.bytes(11, &flag(name)));
        for name in &self.outputs {
            let mut output = Writer::default();
            output.bytes(1, name.as_bytes());
            body.bytes(12, &output.0);
        }
        Ok(write::whole(model, &body, &|_| None).joined())
    }
}

/// Returns the message of a node with other names of its inputs and outputs.
fn renamed(
    file: &[u8],
    range: std::ops::Range<usize>,
    [inputs, outputs]: &[Vec<String>; 2],
) -> Result<Vec<u8>, WireError> {
    let mut message = Writer::default();
    let (mut inputs, mut outputs) = (inputs.iter(), outputs.iter());
    for field in wire::fields(file, range)? {
        let name = match field.number {
            1 => inputs.next(),
            2 => outputs.next(),
            _ => None,
        };
        match name {
            Some(name) => message.bytes(field.number, name.as_bytes()),
            None => message.0.extend(&file[field.span]),
        }
    }
    Ok(message.0)
}

/// Encodes the declaration of an input that is one boolean.
fn flag(name: &str) -> Vec<u8> {
    let (mut tensor, mut kind, mut input) = (Writer::default(), Writer::default(), Writer::default());
    tensor.int(1, Kind::BOOL.0);
    // A shape without axes.
    tensor.bytes(2, &[]);
    kind.bytes(1, &tensor.0);
    input.bytes(1, name.as_bytes());
    input.bytes(2, &kind.0);
    input.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// Computes the nodes of a switch, whose flag is set, in f32.
    fn switched(x: f32) -> f32 {
        let mut extension = Extension::default();
        extension.add_constants("p");
        let mut values: HashMap<String, f32> =
            extension.constants.iter().map(|(name, array)| (name.clone(), array.data[0] as f32)).collect();
        values.insert("x".into(), x);
        values.insert("f".into(), 1.0);
        for node in Extension::switch("p", "x", "y", "f") {
            let of = |i: usize| values[&node.inputs[i]];
            let made = match node.op.as_str() {
                "Mul" => of(0) * of(1),
                "Add" => of(0) + of(1),
                "Sub" => of(0) - of(1),
                "Abs" => of(0).abs(),
                "Less" => f32::from(u8::from(of(0) < of(1))),
                "Where" if of(0) == 1.0 => of(1),
                "Where" => of(2),
                op => panic!("{op}"),
            };
            values.insert(node.outputs[0].clone(), made);
        }
        values["y"]
    }

    #[test]
    fn a_switch_rounds_as_f16_does() {
        let mut bits = 1u32;
        let mut numbers: Vec<f32> =
            vec![0.0, 1.0, 2049.0, 65504.0, 65519.0, 65520.0, 1e30, f32::MAX, 2e-8, 4e-8, 6.1e-5, 1e-12];
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            // Exponents from 2^-27 to 2^17.
            let exponent = 100 + bits % 45;
            numbers.push(f32::from_bits(exponent << 23 | bits >> 9));
        }
        for x in numbers.iter().flat_map(|&x| [x, -x]) {
            let wanted = f16::from_f32(x).to_f32();
            let found = switched(x);
            // A number in the middle between two f16 may be rounded to either.
            let tie = (found - x).abs() == (wanted - x).abs();
            assert!(
                found == wanted || tie && f16::from_f32(found).to_f32() == found,
                "{x:e}: {found:e} {wanted:e}"
            );
        }
        assert!(switched(f32::NAN).is_nan());
        assert_eq!(switched(f32::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
