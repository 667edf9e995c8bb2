//! The problems of series, as plans, staging and fallback know them.

use super::tensors::{dense, past_states, present_states, read, written};
use crate::problem::Problem;
use crate::tensors::Tensor;
use elsa_core::dtype::DType;
use elsa_core::series::selective::Coefficient;
use elsa_core::series::{convolution, recurrence, selective};

impl Problem for recurrence::Problem {
    type Operand = recurrence::Operand;
    type Lengths<'a> = ();

    fn sequences(&self) -> usize {
        self.batch()
    }

    fn tensor(&self, operand: recurrence::Operand, dtype: DType) -> Tensor {
        use recurrence::Operand;
        let (s, argument) = (self.spec(), operand.argument());
        let states = [self.batch(), self.channels(), 1];
        match operand {
            Operand::Gates => read(argument, &s.a, dtype),
            Operand::Addends => read(argument, &s.b, dtype),
            Operand::PastState => past_states(argument, states, s.in_place),
            Operand::Output => written(argument, &s.out, dtype),
            Operand::PresentState => present_states(argument, states, s.in_place),
        }
    }
}

impl Problem for selective::Problem {
    type Operand = selective::Operand;
    type Lengths<'a> = ();

    fn sequences(&self) -> usize {
        self.batch()
    }

    fn tensor(&self, operand: selective::Operand, dtype: DType) -> Tensor {
        use selective::Operand;
        let (s, argument) = (self.spec(), operand.argument());
        let states = [self.batch(), self.channels(), self.states()];
        let parameters = self.channels().saturating_mul(self.states());
        let coefficient = |of: &Coefficient| match of {
            Coefficient::Token(series) => read(argument, series, dtype),
            Coefficient::Channel => dense(argument, parameters, dtype),
        };
        match operand {
            Operand::Signal => read(argument, &s.u, dtype),
            Operand::Steps => read(argument, &s.delta, dtype),
            Operand::Rates => dense(argument, parameters, DType::F32),
            Operand::IntoState => coefficient(&s.b),
            Operand::OutOfState => coefficient(&s.c),
            Operand::Skip | Operand::StepBias => {
                Tensor { optional: true, ..dense(argument, self.channels(), DType::F32) }
            }
            Operand::Gate => match &s.z {
                Some(z) => read(argument, z, dtype),
                None => Tensor { argument, ..Tensor::default() },
            },
            Operand::PastState => past_states(argument, states, s.in_place),
            Operand::Output => written(argument, &s.out, dtype),
            Operand::PresentState => present_states(argument, states, s.in_place),
        }
    }
}

impl Problem for convolution::Problem {
    type Operand = convolution::Operand;
    type Lengths<'a> = ();

    fn sequences(&self) -> usize {
        self.batch()
    }

    fn tensor(&self, operand: convolution::Operand, dtype: DType) -> Tensor {
        use convolution::Operand;
        let (s, argument) = (self.spec(), operand.argument());
        let states = [self.batch(), self.channels(), self.history()];
        match operand {
            Operand::Signal => read(argument, &s.u, dtype),
            Operand::Filter => dense(argument, self.weights(), DType::F32),
            Operand::Bias => Tensor { optional: true, ..dense(argument, self.channels(), DType::F32) },
            Operand::PastState => past_states(argument, states, s.in_place),
            Operand::Output => written(argument, &s.out, dtype),
            Operand::PresentState => present_states(argument, states, s.in_place),
        }
    }
}
