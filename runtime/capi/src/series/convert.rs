//! Conversion of the problems and the options of a recurrence, a selective scan and a convolution between the ABI and
//! the runtime.

use crate::convert::unknown;
use crate::fault::Fault;
use crate::types::*;
use elsa_core::argument::ArgumentError;
use elsa_core::series::Series;
use elsa_core::series::convolution::{self, Taps};
use elsa_core::series::recurrence::{self, Gate};
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::view::View;
use elsa_runtime::{ConvolutionOptions, RecurrenceOptions, SelectiveOptions};

fn series(argument: &'static str, view: &elsa_view) -> Result<Series, ArgumentError> {
    View::new(argument, view.shape, view.strides).map(Series::of)
}

pub(crate) fn recurrence_problem(p: &elsa_recurrence_problem) -> Result<recurrence::Problem, Fault> {
    if p.reserved != 0 {
        return unknown("reserved", p.reserved, "0");
    }
    let mut spec = recurrence::Spec::new(series("a", &p.a)?, series("b", &p.b)?, series("out", &p.out)?);
    spec.gate = match p.gate {
        ELSA_GATE_FACTOR => Gate::Factor,
        ELSA_GATE_LOG => Gate::Log,
        found => return unknown("gate", found, "one of ELSA_GATE_*"),
    };
    (spec.reverse, spec.in_place) = (p.reverse != 0, p.in_place != 0);
    Ok(spec.check()?)
}

pub(crate) fn selective_problem(p: &elsa_selective_problem) -> Result<selective::Problem, Fault> {
    let coefficient = |fixed: u32, argument, view: &elsa_view| match fixed {
        0 => series(argument, view).map(Coefficient::Token),
        _ => Ok(Coefficient::Channel),
    };
    let (b, c) = (coefficient(p.fixed_b, "b", &p.b)?, coefficient(p.fixed_c, "c", &p.c)?);
    let (u, delta, out) = (series("u", &p.u)?, series("delta", &p.delta)?, series("out", &p.out)?);
    let mut spec = selective::Spec::new(u, delta, p.states, b, c, out);
    spec.z = (p.has_z != 0).then(|| series("z", &p.z)).transpose()?;
    (spec.softplus, spec.reverse, spec.in_place) = (p.softplus != 0, p.reverse != 0, p.in_place != 0);
    Ok(spec.check()?)
}

pub(crate) fn convolution_problem(p: &elsa_convolution_problem) -> Result<convolution::Problem, Fault> {
    let mut spec = convolution::Spec::new(series("u", &p.u)?, p.taps, series("out", &p.out)?);
    spec.order = match p.order {
        ELSA_TAPS_NEWEST_FIRST => Taps::NewestFirst,
        ELSA_TAPS_NEWEST_LAST => Taps::NewestLast,
        found => return unknown("order", found, "one of ELSA_TAPS_*"),
    };
    (spec.shared, spec.silu) = (p.shared != 0, p.silu != 0);
    (spec.reverse, spec.in_place) = (p.reverse != 0, p.in_place != 0);
    Ok(spec.check()?)
}

/// Options of a plan of a recurrence, a selective scan or a convolution.
struct SeriesOptions {
    parts: Option<usize>,
    budget: Option<usize>,
    method: Option<convolution::Method>,
}

/// Converts the options of a recurrence, a selective scan or a convolution. Returns an error if they set parts for an
/// operator without parts, or a method for an operator without methods.
fn series_options(
    o: &elsa_series_options,
    has_parts: bool,
    has_methods: bool,
) -> Result<SeriesOptions, Fault> {
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    if o.parts != 0 && !has_parts {
        return Err(Fault::argument(format_args!("parts: {}; allowed: 0, but for a recurrence", o.parts)));
    }
    let method = match o.method {
        ELSA_CONVOLUTION_AUTO => None,
        found if !has_methods => return unknown("method", found, "0, but for a convolution"),
        ELSA_CONVOLUTION_DIRECT => Some(convolution::Method::Direct),
        ELSA_CONVOLUTION_FFT => Some(convolution::Method::Fft),
        found => return unknown("method", found, "one of ELSA_CONVOLUTION_*"),
    };
    let some = |n: usize| (n != 0).then_some(n);
    Ok(SeriesOptions { parts: some(o.parts), budget: some(o.budget), method })
}

pub(crate) fn recurrence_options(o: &elsa_series_options) -> Result<RecurrenceOptions, Fault> {
    let SeriesOptions { parts, budget, .. } = series_options(o, true, false)?;
    Ok(RecurrenceOptions::default().parts(parts).budget(budget))
}

pub(crate) fn selective_options(o: &elsa_series_options) -> Result<SelectiveOptions, Fault> {
    let SeriesOptions { budget, .. } = series_options(o, false, false)?;
    Ok(SelectiveOptions::default().budget(budget))
}

pub(crate) fn convolution_options(o: &elsa_series_options) -> Result<ConvolutionOptions, Fault> {
    let SeriesOptions { budget, method, .. } = series_options(o, false, true)?;
    Ok(ConvolutionOptions::default().budget(budget).method(method))
}

pub(crate) fn convolution_method_number(method: convolution::Method) -> elsa_convolution_method {
    match method {
        convolution::Method::Direct => ELSA_CONVOLUTION_DIRECT,
        convolution::Method::Fft => ELSA_CONVOLUTION_FFT,
    }
}
