//! `elsa demo`: a twenty-second tour of the workloads that this machine computes, with their speed and accuracy.
//!
//! Every workload has the shape of a real model. A slow machine makes fewer calls, with the same shapes. The bound on
//! each output is computed from the run itself. 64 rows of the output are compared with the oracle's rows, which are
//! computed in f64.

use crate::args::EngineArgs;
use crate::bench::watch::{Gate, Watch};
use crate::error::Error;
use crate::oracle::{Bounded, Total, compare};
use crate::report::{count, size};
use crate::rows::{rows, sample};
use crate::shape::{Data, Shape};
use crate::stats::Latencies;
use clap::Args;
use elsa_core::attention::{Operand, Outputs, Problem};
use elsa_core::dtype::DType;
use elsa_files::{Buffer, Content, FileError, Output, Reads, TensorPath, Writer};
use elsa_runtime::{Engine, PlanOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of rows of each output that are compared with the oracle in f64.
const ROWS: usize = 64;
/// Time for the timed calls of a workload. At least [`FEWEST`] calls are made, even if they take longer.
const TIME: Duration = Duration::from_millis(700);
/// Minimum number of timed calls per workload.
const FEWEST: u64 = 3;

/// The workloads: display name and shapes.
const WORKLOADS: [(&str, &str); 5] = [
    ("ViT-B/16, 224 pixels", "1,12,197,197,64"),
    ("Swin-T, stage 1, shifted", "64,3,49,49,32,swin=56x56:3"),
    ("DINOv2 ViT-B, 518 pixels", "1,12,1370,1370,64"),
    ("1 query, 65,536 keys", "1,1,1,65536,64"),
    ("1 head, 16,384 tokens", "1,1,16384,16384,64"),
];

/// `elsa demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Folder for the tensors of the first workload, created if it does not exist: q.npy, k.npy, v.npy, y.npy
    #[arg(long, value_name = "DIR", default_value = "elsa-demo")]
    pub out: PathBuf,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Result of a workload.
struct Row {
    name: &'static str,
    ms: f64,
    gflops: f64,
    /// Size in bytes of the tensors and the workspace.
    bytes: usize,
    /// Size in bytes that the tensors and a matrix of all scores in f32 would have.
    materialised: usize,
    /// Relative L2 error over the compared rows.
    error: f64,
    /// Certified bound on the error of every element; `None` if nothing can be claimed.
    bound: Option<f64>,
    /// `true` if something disturbed the timed calls.
    disturbed: bool,
}

/// Runs the command.
///
/// # Errors
/// Returns an error for flags that the engine refuses, a folder that cannot be written, a failing device, or a wrong
/// output.
pub fn demo(args: &DemoArgs) -> Result<(), Error> {
    let engine = args.engine.engine()?;
    let mut writer = prepare(&args.out)?;
    let watch = Watch::start(Gate::default(), &engine);
    let mut out = crate::foreign::stdout();
    let start = watch.describe(Some(&engine));
    let gpu = match &start.gpu {
        Some(name) => name.to_string(),
        None => "no NVIDIA GPU".to_owned(),
    };
    writeln!(
        out,
        "elsa {} on {}, {}, {gpu}; computing on {} with {}",
        env!("CARGO_PKG_VERSION"),
        start.cpu.as_ref().map_or("an unknown processor", |cpu| cpu.as_str()),
        count(start.cores.into(), "core"),
        engine.backend(),
        count(engine.threads() as u64, "thread"),
    )?;
    writeln!(
        out,
        "Exact FP32 attention at the sizes of real models. Memory is that of the tensors and the workspace.\n"
    )?;
    writeln!(
        out,
        "{:<26}{:>14}{:>10}{:>11}{:>14}{:>12}{:>12}",
        "workload", "latency", "GFLOP/s", "memory", "with scores", "error", "proven"
    )?;
    let mut disturbed = 0;
    let mut shown = None;
    for (name, shape) in WORKLOADS {
        let shape: Shape = shape.parse().map_err(|found| Error::Argument {
            argument: "workload",
            found,
            allowed: "a shape".into(),
        })?;
        let problem = shape.problem(DType::F32)?;
        let data = Data::random(&shape, &problem)?;
        let (row, answer) =
            measure(&engine, &args.engine.plan_options(), name, &shape, &problem, &data, &watch)?;
        writeln!(out, "{}", line(&row))?;
        out.flush()?;
        disturbed += usize::from(row.disturbed);
        if let Some(writer) = writer.take() {
            let Data { query, key, value, .. } = data;
            let tensor = |view: elsa_core::view::View, data| {
                Output::Tensor(Content { shape: view.shape().to_vec(), data })
            };
            let spec = problem.spec();
            writer.commit(&[
                tensor(spec.query, query),
                tensor(spec.key, key),
                tensor(spec.value, value),
                tensor(spec.output, answer),
            ])?;
            shown = Some(row);
        }
    }
    if disturbed > 0 {
        writeln!(
            out,
            "\n* {disturbed} of {} rows were disturbed, for example by other programs; repeat on a quiet machine.",
            WORKLOADS.len()
        )?;
    }
    writeln!(
        out,
        "\nwith scores: the memory if all scores were stored, as in unfused attention.\n\
         error: relative L2 difference from f64, over {ROWS} rows of the answer.\n\
         proven: bound on the error of every element of the answer, for these inputs."
    )?;
    if let Some(Row { bound: Some(bound), .. }) = shown {
        writeln!(
            out,
            "The certificate of the first row: every element is within {bound:.1e} of exact attention."
        )?;
    }
    let (program, folder) = (program(), args.out.display());
    writeln!(
        out,
        "\nThe tensors of the first row are in {folder}. Next:\n  \
         {program} run --q {folder}/q.npy --k {folder}/k.npy --v {folder}/v.npy --out {folder}/out.npy --certificate\n  \
         {program} verify --q {folder}/q.npy --k {folder}/k.npy --v {folder}/v.npy --y {folder}/y.npy\n  \
         {program} bench --shape 1,12,197,197,64"
    )?;
    Ok(())
}

/// Creates the folder and prepares its files, so that an unwritable folder is refused before anything is computed.
fn prepare(folder: &Path) -> Result<Option<Writer>, Error> {
    std::fs::create_dir_all(folder).map_err(|e| FileError::Target {
        argument: "out",
        path: folder.to_path_buf(),
        reason: e.to_string(),
    })?;
    let mut writer = Writer::new(Reads::default());
    for name in ["q.npy", "k.npy", "v.npy", "y.npy"] {
        let path = folder.join(name).to_string_lossy().into_owned();
        let source: TensorPath = path.parse().map_err(|found| Error::Argument {
            argument: "out",
            found,
            allowed: "a folder".into(),
        })?;
        writer.add("out", &source)?;
    }
    Ok(Some(writer))
}

/// Returns the name by which this program was started, for the commands that the demo suggests.
fn program() -> String {
    std::env::args().next().map_or_else(|| "elsa".to_owned(), |name| crate::foreign::one_line(&name))
}

/// Runs a workload: first with a certificate, to compare its output with f64, then repeatedly, to time it.
fn measure(
    engine: &Engine,
    options: &PlanOptions,
    name: &'static str,
    shape: &Shape,
    problem: &Problem,
    data: &Data,
    watch: &Watch,
) -> Result<(Row, Buffer), Error> {
    let inputs = data.inputs();
    let mut answer = Buffer::zeros("out", DType::F32, problem.spec().output.extent())?;
    let certify = engine.plan(problem, &options.certify(true))?;
    let mut workspace = certify.workspace()?;
    let mut bound = certify.bind(inputs, Outputs::new(answer.elements_mut()), &mut workspace)?;
    let report = bound.run()?;
    let proven = bound.certificate()?.largest_absolute();
    drop(bound);

    let executed = certify.certificate_of(report.backend).executed;
    let found = answer.elements();
    let some = sample(&rows(problem, &inputs), ROWS);
    let total = Total::of(&compare(problem, inputs, Bounded::by(&executed), &some, found, |_| {}));
    if !total.explained.holds() {
        return Err(Error::Verification(format!(
            "{name}: the answer differs from f64 by {:.3e}, more than rounding explains",
            total.relative()
        )));
    }

    let plan = engine.plan(problem, options)?;
    let mut workspace = plan.workspace()?;
    let mut again = answer.clone();
    let mut bound = plan.bind(inputs, Outputs::new(again.elements_mut()), &mut workspace)?;
    bound.run_resident()?;
    let mut latencies = Latencies::new();
    let span = watch.open();
    let begin = Instant::now();
    while latencies.count() < FEWEST || begin.elapsed() < TIME {
        let start = Instant::now();
        bound.run_resident()?;
        latencies.add(start.elapsed());
    }
    let readings = watch.close(span, latencies.count());
    let ms = latencies.ms(50.0);
    let tensors: usize = Operand::ALL
        .into_iter()
        .filter_map(|operand| problem.memory(operand))
        .map(|memory| memory.bytes())
        .sum();
    let scores =
        [shape.batch, shape.heads, shape.queries, shape.keys].iter().product::<usize>() * size_of::<f32>();
    let row = Row {
        name,
        ms,
        gflops: shape.operations() / (ms * 1e6),
        bytes: tensors + plan.workspace_bytes(),
        materialised: tensors + scores,
        error: total.relative(),
        bound: proven,
        disturbed: !watch.judge(&readings, true).is_empty(),
    };
    Ok((row, answer))
}

/// Formats the line of a workload.
fn line(row: &Row) -> String {
    let Row { name, ms, gflops, bytes, materialised, error, bound, disturbed } = row;
    let bound = bound.map_or_else(|| "no claim".to_owned(), |bound| format!("{bound:.1e}"));
    let mark = if *disturbed { "*" } else { "" };
    format!(
        "{name:<26}{:>14}{:>10}{:>11}{:>14}{error:>12.1e}{bound:>12}",
        format!("{ms:.3} ms{mark}"),
        format!("{gflops:.1}"),
        size(*bytes),
        size(*materialised),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_problems() {
        for (name, shape) in WORKLOADS {
            let shape: Shape = shape.parse().unwrap();
            assert!(shape.problem(DType::F32).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_row_fits_its_columns() {
        let row = Row {
            name: WORKLOADS[1].0,
            ms: 12345.678,
            gflops: 12345.6,
            bytes: 999_999_999,
            materialised: 123_450_000_000,
            error: 1.0e-7,
            bound: None,
            disturbed: true,
        };
        let line = line(&row);
        assert_eq!(line.len(), 26 + 14 + 10 + 11 + 14 + 12 + 12, "{line}");
        assert!(line.contains("12345.678 ms*") && line.ends_with("no claim"));
    }
}
