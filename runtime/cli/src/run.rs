//! `elsa run`: attention over tensors in files, to files.

use crate::args::RunArgs;
use crate::error::{Error, zeros};
use crate::job::{self, Job};
use crate::tensor::Source;
use crate::tensor::output::{Buffer, Content, Output, Writer};
use elsa_core::attention::{Outputs, StateOut};
use serde::Serialize;
use std::io::Write;
use std::time::Instant;

/// What is said below the flags.
pub const HELP: &str = "\
Several tensors may lie in one .safetensors file, in and out: --q in.safetensors#q ... --out out.safetensors#y.
The certificate is the bound published with ELSA, labelled as such; elsa verify measures what an answer is worth.
Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed.";

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    what: &'static str,
    backend: String,
    kernel: &'static str,
    threads: usize,
    dtype: &'static str,
    shape: Shape,
    workspace_bytes: usize,
    /// Why the CPU computed in place of the GPU that was to.
    fallback: Option<String>,
    ms: f64,
}

#[derive(Debug, Serialize)]
struct Shape {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the outputs from being complete; none of them has changed then.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    let job = Job::load(&args.problem, [args.present_k.is_some(), args.present_v.is_some()])?;
    let problem = job.problem;
    let engine = job::engine(&args.engine)?;
    let plan = engine.plan(&problem, &args.engine.plan_options())?;
    let writer = targets(args)?;

    let dtype = problem.spec().dtype;
    let (rows, dv) = (problem.rows(), problem.value_dim());
    let view = problem.spec().output;
    let lse_shape = vec![view.batch(), view.heads(), view.tokens()];
    let state_width = |argument| rows.checked_mul(dv).ok_or(Error::Memory { argument, bytes: usize::MAX });
    let mut out = Buffer::zeros("out", dtype, view.extent())?;
    let mut lse = args.lse_out.is_some().then(|| zeros::<f32>("lse-out", rows)).transpose()?;
    let mut state = match &args.state_out {
        Some(_) => Some([
            zeros::<f32>("state-out", rows)?,
            zeros("state-out", rows)?,
            zeros("state-out", state_width("state-out")?)?,
        ]),
        None => None,
    };
    let present = |argument, view: Option<elsa_core::view::View>| {
        view.map(|view| Buffer::zeros(argument, dtype, view.extent())).transpose()
    };
    let mut present_k = present("present-k", problem.spec().present_key)?;
    let mut present_v = present("present-v", problem.spec().present_value)?;

    let mut workspace = plan.workspace()?;
    let mut outputs = Outputs::new(out.elements_mut());
    outputs.lse = lse.as_deref_mut();
    outputs.state = state.as_mut().map(|[m, s, w]| StateOut { m, s, w });
    outputs.present_key = present_k.as_mut().map(Buffer::elements_mut);
    outputs.present_value = present_v.as_mut().map(Buffer::elements_mut);
    let mut bound = plan.bind(job.inputs()?, outputs, &mut workspace)?;
    // At ten billion operations a second, which is what a small board does.
    let operations = 2.0 * rows as f64 * problem.keys() as f64 * (problem.head_dim() + dv) as f64;
    let spinner = crate::bench::spinner(operations / 1e10);
    let start = Instant::now();
    let done = bound.run();
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    let report = done?;

    let tensor = |shape: &[usize], data| Output::Tensor(Content { shape: shape.to_vec(), data });
    let mut contents = vec![tensor(&job.out_shape, out)];
    contents.extend(present_k.map(|data| tensor(&job.present_k_shape, data)));
    contents.extend(present_v.map(|data| tensor(&job.present_v_shape, data)));
    contents.extend(lse.map(|data| tensor(&lse_shape, Buffer::F32(data))));
    if let Some([m, s, w]) = state {
        let mut w_shape = lse_shape.clone();
        w_shape.push(dv);
        let array = |shape: &[usize], data| Content { shape: shape.to_vec(), data: Buffer::F32(data) };
        contents.push(Output::Archive(vec![
            ("m", array(&lse_shape, m)),
            ("S", array(&lse_shape, s)),
            ("W", array(&w_shape, w)),
        ]));
    }
    writer.commit(contents)?;

    let mut stdout = std::io::stdout().lock();
    if args.certificate {
        writeln!(stdout, "{}", plan.certificate_of(report.backend))?;
    }
    let kernel = plan.kernel_of(report.backend);
    if args.json {
        let report = Report {
            what: "run",
            backend: report.backend.to_string(),
            kernel,
            threads: engine.threads(),
            dtype: dtype.name(),
            shape: Shape {
                batch: problem.sequences(),
                heads: problem.heads(),
                kv_heads: problem.kv_heads(),
                queries: view.tokens(),
                keys: problem.keys(),
                dim: problem.head_dim(),
                value_dim: dv,
            },
            workspace_bytes: plan.workspace_bytes(),
            fallback: report.fallback.map(|reason| reason.to_string()),
            ms,
        };
        writeln!(stdout, "{}", crate::json(&report)?)?;
    } else {
        eprintln!(
            "elsa: wrote {} {:?} {dtype} in {ms:.3} ms ({}, {}, {} threads, {} bytes of workspace)",
            crate::error::one_line(&args.out.to_string()),
            job.out_shape,
            report.backend,
            kernel,
            engine.threads(),
            plan.workspace_bytes()
        );
    }
    Ok(())
}

/// Finds out that every output can be written, in the order in which `run` lists their contents.
fn targets(args: &RunArgs) -> Result<Writer, Error> {
    let problem = &args.problem;
    let inputs: Vec<(&'static str, &Source)> = [
        ("q", &problem.q),
        ("k", &problem.k),
        ("v", &problem.v),
        ("mask", &problem.mask),
        ("kv-lens", &problem.kv_lens),
        ("past-k", &problem.past_k),
        ("past-v", &problem.past_v),
        ("cu-seqlens-q", &problem.cu_seqlens_q),
        ("cu-seqlens-k", &problem.cu_seqlens_k),
    ]
    .into_iter()
    .filter_map(|(argument, source)| source.as_ref().map(|source| (argument, source)))
    .collect();
    let mut writer = Writer::default();
    writer.add("out", &args.out, &inputs)?;
    for (argument, source) in
        [("present-k", &args.present_k), ("present-v", &args.present_v), ("lse-out", &args.lse_out)]
    {
        if let Some(source) = source {
            writer.add(argument, source, &inputs)?;
        }
    }
    if let Some(path) = &args.state_out {
        writer.add_archive("state-out", path, &inputs)?;
    }
    Ok(writer)
}
