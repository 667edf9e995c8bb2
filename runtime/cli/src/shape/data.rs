//! Random data for the problem that a shape defines.

use super::form::{MaskForm, Shape};
use crate::error::Error;
use crate::random::Random;
use elsa_core::attention::{Alignment, Inputs, MaskElements, Problem};
use elsa_files::{Buffer, zeros};

/// Probability that an element of a random boolean mask is true.
const ATTENDED: f64 = 0.8;

/// Tensors of standard normal numbers, with a mask if the shape has one.
#[derive(Clone, Debug)]
pub struct Data {
    /// Queries.
    pub query: Buffer,
    /// Keys.
    pub key: Buffer,
    /// Values.
    pub value: Buffer,
    /// The mask, if the shape has one.
    pub mask: Option<Mask>,
    /// The table of relative positions, if the shape has one.
    pub table: Option<Buffer>,
    /// Bounds of the packed sequences, if the shape packs them.
    pub bounds: Option<Vec<i64>>,
}

/// The elements of a mask.
#[derive(Clone, Debug)]
pub enum Mask {
    /// One byte per element.
    Bool(Vec<u8>),
    /// Elements that are added to the scores.
    Additive(Buffer),
}

impl Data {
    /// Generates data for `problem`, which must be the problem of `shape`. The data are the same in every run, and
    /// every query attends at least one key.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn random(shape: &Shape, problem: &Problem) -> Result<Data, Error> {
        let spec = problem.spec();
        let mut random = Random::new(2);
        let mut normals = |count| random.normals("shape", spec.dtype, count, 1.0);
        let query = normals(spec.query.extent())?;
        let key = normals(spec.key.extent())?;
        let value = normals(spec.value.extent())?;
        let table = spec.bias.as_ref().map(|bias| normals(bias.extent())).transpose()?;
        let mask = match (shape.mask, &spec.mask) {
            (Some(form), Some(view)) if !form.is_boolean() => Some(Mask::Additive(normals(view.extent())?)),
            (Some(form), Some(view)) => {
                let mut mask = zeros("shape", view.extent())?;
                fill(form, shape, &mut random, &mut mask);
                Some(Mask::Bool(mask))
            }
            _ => None,
        };
        Ok(Data { query, key, value, mask, table, bounds: shape.bounds() })
    }

    /// Returns the input tensors of a call, and the bounds of packed sequences.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.query.elements(), self.key.elements(), self.value.elements());
        inputs.mask = self.mask.as_ref().map(|mask| match mask {
            Mask::Bool(mask) => MaskElements::Bool(mask),
            Mask::Additive(mask) => MaskElements::Additive(mask.elements()),
        });
        inputs.bias = self.table.as_ref().map(Buffer::elements);
        inputs.lengths.cu_seqlens_q = self.bounds.as_deref();
        inputs.lengths.cu_seqlens_k = self.bounds.as_deref();
        inputs
    }
}

/// Fills the boolean mask `mask` of form `form`: sets its true elements to one. Requires that all elements are zero
/// before the call.
fn fill(form: MaskForm, shape: &Shape, random: &mut Random, mask: &mut [u8]) {
    let Shape { batch, queries, keys, causal, .. } = *shape;
    match form {
        MaskForm::True => mask.fill(1),
        MaskForm::Padding => {
            for (b, row) in mask.chunks_mut(keys).enumerate() {
                row[..valid(keys, b, batch)].fill(1);
            }
        }
        _ => {
            for (i, row) in mask.chunks_mut(keys).enumerate() {
                for element in &mut *row {
                    *element = u8::from(random.uniform() < ATTENDED);
                }
                // The diagonal is always true, so that every row of a causal shape and of a window attends a key.
                let offset = if causal == Some(Alignment::TopLeft) { queries } else { keys };
                row[(i % queries + offset).saturating_sub(queries).min(keys - 1)] = 1;
            }
        }
    }
}

/// Returns the number of keys of sequence `b` that are not padding. The number is at least one. It decreases from each
/// sequence to the next, from nearly all keys to slightly more than half of them.
fn valid(keys: usize, b: usize, batch: usize) -> usize {
    let padding = keys as f64 * 0.5 * (b + 1) as f64 / (batch + 1) as f64;
    (keys - padding as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::dtype::DType;

    fn mask(text: &str) -> Vec<u8> {
        let shape: Shape = text.parse().unwrap();
        match Data::random(&shape, &shape.problem(DType::F32).unwrap()).unwrap().mask {
            Some(Mask::Bool(mask)) => mask,
            mask => panic!("{text}: {mask:?}"),
        }
    }

    #[test]
    fn masks_are_what_their_names_say() {
        let whole = mask("2,3,10,40,8,mask=bool");
        let attended = whole.iter().filter(|x| **x == 1).count() as f64 / whole.len() as f64;
        // Each row has 40 pairs. One pair is certainly attended, and each of the other pairs is attended with
        // probability 0.8. The limit is four standard errors over 2,400 pairs.
        assert!(whole.len() == 2400 && (attended - 0.805).abs() < 4.0 * 0.0082, "{attended}");
        assert!((0..60).all(|i| whole[i * 40 + 30 + i % 10] == 1));
        assert!(mask("2,3,10,40,8,mask=true").iter().all(|x| *x == 1));

        let padding = mask("3,2,10,40,8,mask=padding");
        let lengths: Vec<usize> =
            padding.chunks(40).map(|row| row.iter().position(|x| *x == 0).unwrap()).collect();
        assert_eq!(lengths, [35, 30, 25]);
        assert!(padding.chunks(40).zip(lengths).all(|(row, n)| row[n..].iter().all(|x| *x == 0)));
        assert_eq!((mask("1,1,1,1,8,mask=padding"), valid(100, 0, 1)), (vec![1], 75));
    }

    #[test]
    fn windows_have_a_table() {
        let shape: Shape = "8,3,16,16,8,mask=row,swin=8x8:1".parse().unwrap();
        let problem = shape.problem(DType::Bf16).unwrap();
        let data = Data::random(&shape, &problem).unwrap();
        let table = data.table.as_ref().map(|table| (table.elements().len(), table.elements().dtype()));
        assert_eq!((table, data.inputs().check(&problem)), (Some((49 * 3, DType::Bf16)), Ok(())));
    }

    #[test]
    fn packed_sequences_have_bounds() {
        let shape: Shape = "5,6,30,30,8,packed=10".parse().unwrap();
        let problem = shape.problem(DType::F32).unwrap();
        let data = Data::random(&shape, &problem).unwrap();
        assert_eq!((data.query.elements().len(), data.inputs().check(&problem)), (100 * 6 * 8, Ok(())));
    }

    #[test]
    fn additive_masks_have_the_type_of_the_tensors() {
        for (text, count) in
            [("float", 2 * 3 * 4 * 5), ("bias", 3 * 4 * 5), ("batch", 2 * 4 * 5), ("row", 2 * 5)]
        {
            let shape: Shape = format!("2,3,4,5,8,mask={text}").parse().unwrap();
            let problem = shape.problem(DType::F16).unwrap();
            let data = Data::random(&shape, &problem).unwrap();
            let Some(Mask::Additive(mask)) = &data.mask else { panic!("{text}") };
            assert_eq!((mask.elements().len(), mask.elements().dtype()), (count, DType::F16), "{text}");
            assert_eq!(data.inputs().check(&problem), Ok(()), "{text}");
        }
    }
}
