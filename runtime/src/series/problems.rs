//! The problems of series, as plans, staging and fallback know them.

use super::tensors::{
    LARGEST, Types, dense, of_convolution, of_recurrence, of_selective, read, states, written,
};
use crate::problem::Problem;
use crate::tensors::{PerTensor, Tensor, per_tensor};
use elsa_core::dtype::DType;
use elsa_core::series::selective::Coefficient;
use elsa_core::series::{convolution, recurrence, selective};

impl Problem for recurrence::Problem {
    type Lengths<'a> = Types;

    fn sequences(&self) -> usize {
        self.batch()
    }

    fn tensors(&self) -> PerTensor<Tensor> {
        self.tensors_of(&LARGEST)
    }

    fn tensors_of(&self, types: &Types) -> PerTensor<Tensor> {
        use of_recurrence as number;
        let s = self.spec();
        let [past, present] = states([self.batch(), self.channels(), 1], s.in_place);
        per_tensor(|at| match at {
            number::A => read("a", &s.a, types[at]),
            number::B => read("b", &s.b, types[at]),
            number::PAST => past,
            number::OUT => written("out", &s.out, types[at]),
            number::PRESENT => present,
            _ => Tensor::default(),
        })
    }
}

impl Problem for selective::Problem {
    type Lengths<'a> = Types;

    fn sequences(&self) -> usize {
        self.batch()
    }

    fn tensors(&self) -> PerTensor<Tensor> {
        self.tensors_of(&LARGEST)
    }

    fn tensors_of(&self, types: &Types) -> PerTensor<Tensor> {
        use of_selective as number;
        let (s, channels) = (self.spec(), self.channels());
        let [past, present] = states([self.batch(), channels, self.states()], s.in_place);
        let parameters = channels.saturating_mul(self.states());
        let coefficient = |argument, of: &Coefficient, dtype| match of {
            Coefficient::Token(series) => read(argument, series, dtype),
            Coefficient::Channel => dense(argument, parameters, dtype),
        };
        let optional = |argument| Tensor { optional: true, ..dense(argument, channels, DType::F32) };
        per_tensor(|at| match at {
            number::U => read("u", &s.u, types[at]),
            number::DELTA => read("delta", &s.delta, types[at]),
            number::A => dense("a", parameters, DType::F32),
            number::B => coefficient("b", &s.b, types[at]),
            number::C => coefficient("c", &s.c, types[at]),
            number::D => optional("d"),
            number::Z => match &s.z {
                Some(z) => read("z", z, types[at]),
                None => Tensor { argument: "z", ..Tensor::default() },
            },
            number::BIAS => optional("delta_bias"),
            number::PAST => past,
            number::OUT => written("out", &s.out, types[at]),
            number::PRESENT => present,
            _ => Tensor::default(),
        })
    }
}

impl Problem for convolution::Problem {
    type Lengths<'a> = Types;

    fn sequences(&self) -> usize {
        self.batch()
    }

    fn tensors(&self) -> PerTensor<Tensor> {
        self.tensors_of(&LARGEST)
    }

    fn tensors_of(&self, types: &Types) -> PerTensor<Tensor> {
        use of_convolution as number;
        let s = self.spec();
        let [past, present] = states([self.batch(), self.channels(), self.history()], s.in_place);
        per_tensor(|at| match at {
            number::U => read("u", &s.u, types[at]),
            number::FILTER => dense("filter", self.weights(), DType::F32),
            number::BIAS => Tensor { optional: true, ..dense("bias", self.channels(), DType::F32) },
            number::PAST => past,
            number::OUT => written("out", &s.out, types[at]),
            number::PRESENT => present,
            _ => Tensor::default(),
        })
    }
}
