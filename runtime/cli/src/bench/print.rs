//! Records as a table.

use super::measure::{ELSA, MATH, Record};
use crate::machine;
use crate::oracle::Total;
use crate::shape::Shape;
use elsa_core::dtype::DType;
use elsa_runtime::Engine;

/// The width of the column that names `shapes`.
pub fn width(shapes: &[Shape]) -> usize {
    shapes.iter().map(|shape| shape.to_string().len()).max().unwrap_or(0)
}

/// The lines above the rows of a table whose first column has `width` letters.
pub fn headline(engine: &Engine, dtype: DType, width: usize, records: &[(Record, Total)]) -> String {
    let kernel = records.first().map_or("", |(record, _)| record.kernel);
    let cpu = machine::cpu_model().unwrap_or_else(|| "unknown CPU".into());
    let device = match engine.device() {
        Some(device) => device.name.clone(),
        None => format!("{} threads, {cpu}", engine.threads()),
    };
    format!(
        "{}, kernel {kernel}, {}, {device}\n\
         {:<width$} {:>11} {:>11} {:>9} {:>9} {:>10} {:>11}",
        engine.backend(),
        dtype,
        "shape",
        "elsa ms",
        "math ms",
        "speedup",
        "GFLOP/s",
        "rel L2",
        "workspace"
    )
}

/// The row of a shape: its records side by side.
pub fn row(width: usize, records: &[(Record, Total)]) -> String {
    let of = |method: &str| records.iter().map(|(record, _)| record).find(|record| record.method == method);
    let ms = |record: Option<&Record>| record.map_or("-".into(), |r| format!("{:.4}", r.p50_ms));
    let (elsa, math) = (of(ELSA), of(MATH));
    let speedup = elsa.and_then(|r| r.speedup_vs_math).map_or("-".into(), |x| format!("{x:.2}x"));
    let shown = elsa.or(math);
    format!(
        "{:<width$} {:>11} {:>11} {speedup:>9} {:>9.2} {:>10.2e} {:>11}",
        shown.map_or("", |r| &r.shape),
        ms(elsa),
        ms(math),
        shown.map_or(f64::NAN, |r| r.gflops),
        shown.map_or(f64::NAN, |r| r.rel_l2),
        shown.map_or(0, |r| r.workspace_bytes),
    )
}
