//! Conversion of the problem and the options of attention from the structs of the ABI.

use crate::convert::{dtype, unknown};
use crate::fault::Fault;
use crate::types::*;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::traversal::{Schedule, Skip};
use elsa_core::attention::{
    Alignment, BiasView, MaskKind, MaskView, Problem, Spec, TableView, Window, Windows,
};
use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_runtime::{Method, PlanOptions, TensorCores};

/// Converts the schedule, without the error budget. The plan checks its numbers.
fn schedule(o: &elsa_plan_options) -> Result<Schedule, Fault> {
    let lambda = if o.lambda == 0.0 { Schedule::LAMBDA } else { o.lambda };
    let mut schedule = match o.schedule {
        ELSA_SCHEDULE_EXACT => Schedule::EXACT,
        ELSA_SCHEDULE_FLASH => Schedule::FLASH,
        ELSA_SCHEDULE_VFA => Schedule::VFA,
        ELSA_SCHEDULE_VSA => Schedule::vsa(lambda),
        ELSA_SCHEDULE_BLASST => Schedule::blasst(lambda),
        found => return unknown("schedule", found, "one of ELSA_SCHEDULE_*"),
    };
    if o.lambda != 0.0 && schedule.skip == Skip::Never {
        let found = o.lambda;
        return Err(Fault::argument(format_args!(
            "lambda: {found}; allowed: 0, or ELSA_SCHEDULE_VSA or ELSA_SCHEDULE_BLASST"
        )));
    }
    if o.rescale_threshold != 0.0 {
        schedule.threshold = o.rescale_threshold;
    }
    schedule.gate = o.norm_gate != 0;
    Ok(schedule)
}

pub(crate) fn plan_options(o: &elsa_plan_options) -> Result<PlanOptions, Fault> {
    let method = match o.method {
        ELSA_METHOD_ELSA => Method::Elsa,
        ELSA_METHOD_MATH => Method::Math,
        found => return unknown("method", found, "one of ELSA_METHOD_*"),
    };
    let schedule = schedule(o)?;
    let tensor_cores = match o.tensor_cores {
        ELSA_TENSOR_CORES_OFF => TensorCores::Off,
        ELSA_TENSOR_CORES_ALLOW => TensorCores::Allow,
        ELSA_TENSOR_CORES_ALWAYS => TensorCores::Always,
        ELSA_TENSOR_CORES_F16 => TensorCores::F16,
        found => return unknown("tensor_cores", found, "one of ELSA_TENSOR_CORES_*"),
    };
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    let default = PlanOptions::default();
    Ok(default
        .method(method)
        .tensor_cores(tensor_cores)
        .block(if o.block == 0 { default.block } else { o.block })
        .budget((o.budget != 0).then_some(o.budget))
        .half_scores(o.half_scores != 0)
        .certify(o.certify != 0)
        .schedule(schedule)
        .error_budget((o.error_budget != 0.0).then_some(o.error_budget)))
}

/// Converts a mask or a dense bias; `argument` is its name in messages.
fn mask(argument: &'static str, mask: &elsa_mask) -> Result<Option<MaskView>, Fault> {
    let kind = match mask.kind {
        ELSA_MASK_NONE => return Ok(None),
        ELSA_MASK_BOOL => MaskKind::Bool,
        ELSA_MASK_F32 => MaskKind::Additive(DType::F32),
        ELSA_MASK_F16 => MaskKind::Additive(DType::F16),
        ELSA_MASK_BF16 => MaskKind::Additive(DType::Bf16),
        found => return unknown(&format!("{argument}.kind"), found, "one of ELSA_MASK_*"),
    };
    match usize::try_from(mask.rank).ok().and_then(|rank| mask.dims.get(..rank)) {
        Some(dims) => Ok(Some(MaskView::dense(kind, dims).map_err(|e| e.renamed(|_| argument))?)),
        None => unknown(&format!("{argument}.rank"), mask.rank, "1 to 4"),
    }
}

/// Converts the bias, which is either a tensor or a table. If both are given, returns an error.
fn bias(tensor: &elsa_mask, table: &elsa_table) -> Result<Option<BiasView>, Fault> {
    let tensor = mask("bias", tensor)?;
    if *table == elsa_table::default() {
        return Ok(tensor.map(BiasView::Dense));
    }
    if tensor.is_some() {
        return Err(ArgumentError::Conflict { argument: "bias", other: "bias_table" }.into());
    }
    let elsa_table { entries, heads, .. } = *table;
    let (dtype, indexed) = (dtype("bias_table.dtype", table.dtype)?, table.has_index != 0);
    Ok(Some(BiasView::Table(TableView { dtype, entries, heads, indexed })))
}

fn windows(w: &elsa_windows) -> Option<Windows> {
    (*w != elsa_windows::default()).then_some(Windows { picture: w.picture, size: w.size, shift: w.shift })
}

fn side(argument: &str, has: u32, keys: i64) -> Result<Option<usize>, Fault> {
    match usize::try_from(keys) {
        Ok(keys) => Ok((has != 0).then_some(keys)),
        Err(_) if has == 0 => Ok(None),
        Err(_) => Err(Fault::argument(format_args!("{argument}: {keys}; allowed: 0 or more"))),
    }
}

pub(crate) fn problem(p: &elsa_problem) -> Result<Problem, Fault> {
    if p.reserved != 0 {
        return unknown("reserved", p.reserved, "0");
    }
    let view = |argument, view: &elsa_view| View::new(argument, view.shape, view.strides);
    let optional = |has: u32, argument, v: &elsa_view| (has != 0).then(|| view(argument, v)).transpose();
    let mut spec = Spec::new(
        dtype("dtype", p.dtype)?,
        view("q", &p.q)?,
        view("k", &p.k)?,
        view("v", &p.v)?,
        view("out", &p.out)?,
    );
    spec.past_key = optional(p.has_past, "past_k", &p.past_k)?;
    spec.past_value = optional(p.has_past, "past_v", &p.past_v)?;
    spec.present_key = optional(p.has_present, "present_k", &p.present_k)?;
    spec.present_value = optional(p.has_present, "present_v", &p.present_v)?;
    spec.append = p.append != 0;
    spec.scale = (p.has_scale != 0).then_some(p.scale);
    spec.softcap = Some(p.softcap);
    spec.causal = match p.causal {
        ELSA_CAUSAL_NONE => None,
        ELSA_CAUSAL_TOP_LEFT => Some(Alignment::TopLeft),
        ELSA_CAUSAL_BOTTOM_RIGHT => Some(Alignment::BottomRight),
        found => return unknown("causal", found, "one of ELSA_CAUSAL_*"),
    };
    spec.window = Window {
        left: side("window_left", p.has_window_left, p.window_left)?,
        right: side("window_right", p.has_window_right, p.window_right)?,
    };
    spec.mask = mask("mask", &p.mask)?;
    spec.bias = bias(&p.bias, &p.bias_table)?;
    spec.windows = windows(&p.windows);
    spec.key_lengths = p.has_key_lengths != 0;
    spec.packed = (p.packed != 0).then_some(p.packed);
    Ok(spec.check()?)
}
