//! The times of all calls in the form of `trtexec --exportTimes`: a list of calls with the start, end and duration of what
//! they consist of, in milliseconds. A call of this library is enqueued and computes; its tensors stay where they are, so
//! nothing is copied. `name` says which row of the results a call belongs to.

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
