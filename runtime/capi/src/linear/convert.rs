//! Conversion of the problem and the options of linear attention between the ABI and the runtime.

use crate::convert::{gated_types, optional, unknown};
use crate::fault::Fault;
use crate::types::*;
use elsa_core::linear::{Direction, Form, Problem, Rule, Spec};
use elsa_core::view::View;
use elsa_runtime::LinearPlanOptions;

pub(crate) fn problem(p: &elsa_linear_problem) -> Result<Problem, Fault> {
    if p.reserved != 0 {
        return unknown("reserved", p.reserved, "0");
    }
    let view = |argument, view: &elsa_view| View::new(argument, view.shape, view.strides);
    let (q, k, v) = (view("q", &p.q)?, view("k", &p.k)?, view("v", &p.v)?);
    let (dtype, gate_dtype) = gated_types(p.dtype, p.gate_dtype)?;
    let mut spec = Spec::new(dtype, q, k, v, view("out", &p.out)?);
    spec.gate_dtype = gate_dtype;
    spec.rule = match p.rule {
        ELSA_RULE_LINEAR => Rule::Linear,
        ELSA_RULE_GATED => Rule::Gated,
        ELSA_RULE_DELTA => Rule::Delta,
        ELSA_RULE_GATED_DELTA => Rule::GatedDelta,
        found => return unknown("rule", found, "one of ELSA_RULE_*"),
    };
    spec.direction = match p.direction {
        ELSA_DIRECTION_FORWARD => Direction::Forward,
        ELSA_DIRECTION_REVERSE => Direction::Reverse,
        ELSA_DIRECTION_BIDIRECTIONAL => Direction::Bidirectional,
        ELSA_DIRECTION_NON_CAUSAL => Direction::NonCausal,
        found => return unknown("direction", found, "one of ELSA_DIRECTION_*"),
    };
    spec.decay = optional(p.has_decay, "decay", &p.decay)?;
    spec.beta = optional(p.has_beta, "beta", &p.beta)?;
    spec.past_state = optional(p.has_past_state, "past_state", &p.past_state)?;
    spec.present_state = optional(p.has_present_state, "present_state", &p.present_state)?;
    spec.in_place = p.in_place != 0;
    spec.scale = (p.has_scale != 0).then_some(p.scale);
    spec.normalize = (p.has_normalize != 0).then_some(p.normalize);
    spec.packed = (p.packed != 0).then_some(p.packed);
    Ok(spec.check()?)
}

/// Algorithms of linear attention and their numbers in the ABI.
const FORMS: [(elsa_form, Form); 5] = [
    (ELSA_FORM_RECURRENT, Form::Recurrent),
    (ELSA_FORM_CHUNK, Form::Chunk),
    (ELSA_FORM_FUSED_CHUNK, Form::FusedChunk),
    (ELSA_FORM_PARALLEL, Form::Parallel),
    (ELSA_FORM_SCAN, Form::Scan),
];

pub(crate) fn form_number(form: Form) -> elsa_form {
    FORMS.into_iter().find(|(_, of)| *of == form).map_or(ELSA_FORM_AUTO, |(number, _)| number)
}

pub(crate) fn options(o: &elsa_linear_options) -> Result<LinearPlanOptions, Fault> {
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    let form = match FORMS.into_iter().find(|(number, _)| *number == o.form) {
        Some((_, form)) => Some(form),
        None if o.form == ELSA_FORM_AUTO => None,
        None => return unknown("form", o.form, "one of ELSA_FORM_*"),
    };
    let some = |n: usize| (n != 0).then_some(n);
    let (chunk, parts, budget) = (some(o.chunk), some(o.parts), some(o.budget));
    Ok(LinearPlanOptions::default().form(form).chunk(chunk).parts(parts).budget(budget))
}
