//! Past and present keys and values: their shapes in a problem, and their data in a call.

use super::data::Inputs;
use super::operands::Operand;
use super::problem::{Problem, Spec};
use crate::argument::ArgumentError;
use crate::dtype::Elements;
use crate::view::View;

impl Spec {
    /// Returns the name of the first past or present tensor that the problem has; `None` if it has neither past nor present
    /// tensors.
    #[must_use]
    pub fn past_or_present(&self) -> Option<&'static str> {
        let tensors = [
            (Operand::PastKey, self.past_key),
            (Operand::PresentKey, self.present_key),
            (Operand::PresentValue, self.present_value),
        ];
        tensors.into_iter().find_map(|(operand, view)| view.map(|_| operand.argument()))
    }

    /// Returns `true` if the problem has a past.
    #[must_use]
    pub const fn has_past(&self) -> bool {
        self.past_key.is_some()
    }

    /// Returns the number of past keys of each sequence.
    #[must_use]
    pub fn past_tokens(&self) -> usize {
        self.past_key.map_or(0, |view| view.tokens())
    }

    /// Checks that past rows can be the first rows of the present tensors: past and present tensors must have equal
    /// strides along every axis with more than one element.
    pub(super) fn check_append(&self) -> Result<(), ArgumentError> {
        let pairs = [
            (&self.past_key, "past_k", &self.present_key, "present_k"),
            (&self.past_value, "past_v", &self.present_value, "present_v"),
        ];
        for (past, argument, present, of) in pairs {
            let needs = |other| ArgumentError::Needs { argument: "append", other };
            let past = past.as_ref().ok_or(needs(argument))?;
            let present = present.as_ref().ok_or(needs(of))?;
            if past.count() == 0 {
                continue;
            }
            for (a, axis) in ["batch stride", "head stride", "token stride"].into_iter().enumerate() {
                let (found, allowed) = (past.strides()[a], present.strides()[a]);
                if past.shape()[a] > 1 && found != allowed {
                    return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of });
                }
            }
        }
        Ok(())
    }
}

impl<'a> Inputs<'a> {
    /// Returns the past keys and past values with their views; `None` if the call has no past tensors that are separate
    /// from the present tensors.
    #[must_use]
    pub fn past(&self, problem: &Problem) -> Option<[(View, Elements<'a>); 2]> {
        let s = problem.spec();
        s.past_key.zip(self.past_key).zip(s.past_value.zip(self.past_value)).map(<[_; 2]>::from)
    }
}
