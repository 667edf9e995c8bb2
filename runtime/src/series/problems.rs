//! Implements the trait [`Problem`] for the problems of the per-channel operators.

use crate::problem::Problem;
use crate::tensors::TensorSpec;
use elsa_core::dtype::DType;
use elsa_core::series::{convolution, recurrence, selective};

/// Implements [`Problem`] for the problem type that a module of `elsa_core::series` defines.
macro_rules! problem {
    ($module:ident) => {
        impl Problem for $module::Problem {
            type Operand = $module::Operand;
            type Lengths<'a> = ();

            fn sequences(&self) -> usize {
                self.batch()
            }

            fn tensor(&self, operand: $module::Operand, dtype: DType) -> TensorSpec {
                let in_place = self.spec().in_place;
                let read_in_place = in_place && operand == $module::Operand::PresentState;
                TensorSpec {
                    argument: operand.argument(),
                    memory: self.memory(operand, dtype),
                    read: !operand.is_written() || read_in_place,
                    written: operand.is_written(),
                    optional: operand.is_optional(),
                    forbidden: (in_place && operand == $module::Operand::PastState).then_some("in_place"),
                    ..TensorSpec::default()
                }
            }
        }
    };
}

problem!(recurrence);
problem!(selective);
problem!(convolution);
