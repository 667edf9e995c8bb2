//! The times of all calls in the format of `trtexec --exportTimes`: a list of calls with the start, end and duration of
//! each phase, in milliseconds. A call of this library has two phases: enqueue and compute. Its tensors stay in place,
//! so there are no phases for copies. The field `name` identifies the row of the results to which a call belongs.

use super::measure::Measured;
use serde_json::{Value, json};

/// Adds the calls of `measured` to `calls`.
pub fn add(calls: &mut Vec<Value>, measured: &Measured) {
    let cell = &measured.cell;
    let name = format!("{} {} {}", cell.shape, cell.dtype, cell.method);
    calls.extend(measured.times.iter().map(|&(start, ms)| {
        let end = start + ms;
        json!({ "name": name, "startComputeMs": start, "endComputeMs": end, "computeMs": ms,
            "startH2dMs": start, "endH2dMs": start, "h2dMs": 0.0, "startD2hMs": end, "endD2hMs": end, "d2hMs": 0.0,
            "latencyMs": ms })
    }));
}
