//! Conversion of the options of a stream from the struct of the ABI.

use crate::convert::unknown;
use crate::fault::Fault;
use crate::types::*;
use elsa_core::attention::plan::Written;
use elsa_runtime::{StreamOptions, UnitSizes};

pub(crate) fn options(o: &elsa_stream_options) -> Result<StreamOptions, Fault> {
    if o.reserved != 0 {
        return unknown("reserved", o.reserved, "0");
    }
    if o.outputs & !(ELSA_STREAM_OUT | ELSA_STREAM_LSE | ELSA_STREAM_STATES) != 0 {
        return unknown("outputs", o.outputs, "ELSA_STREAM_* together, or 0");
    }
    if !(o.eta.is_finite() && o.eta >= 0.0) {
        return Err(Fault::argument(format_args!("eta: {}; allowed: a positive number, or 0", o.eta)));
    }
    let default = StreamOptions::new(o.host_budget);
    let has = |output: elsa_stream_outputs| o.outputs & output != 0;
    let some =
        Written { output: has(ELSA_STREAM_OUT), lse: has(ELSA_STREAM_LSE), states: has(ELSA_STREAM_STATES) };
    let [sequences, heads, tiles, vectors, chunk] = o.sizes;
    let sizes = UnitSizes { sequences, heads, tiles, vectors, chunk };
    // The sizes of a run on a GPU are those of a division.
    let sizes = (o.sizes != [0; 5] && o.device_budget == 0).then_some(sizes);
    Ok(default
        .sizes(sizes)
        .plan(default.plan.block(if o.block == 0 { default.plan.block } else { o.block }))
        .written(if o.outputs == 0 { default.written } else { some })
        .eta(if o.eta == 0.0 { default.eta } else { o.eta }))
}
