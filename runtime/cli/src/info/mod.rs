//! `elsa info`: reports this machine's hardware, the engine's choices and the reasons.

mod board;
mod linear;
mod profile;

use crate::args::values::{bytes, dtype};
use crate::error::{Error, one_line};
use crate::machine;
use crate::report::{self, Loaded, count, object};
use crate::shape::Shape;
use crate::stream;
use clap::Args;
use elsa_board::{Root, describe};
use elsa_core::dtype::DType;
use elsa_core::linear::plan::Crossovers;
use elsa_runtime::{
    DeviceInfo, Engine, EngineOptions, LinearGpuChoice, PlanOptions, Present, TunedFile, backends,
};
use linear::Crossover;
use profile::Profile;
use serde::Serialize;
use std::io::Write;

/// `elsa info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Report the memory of a streamed run of --shape (elsa run --host-budget) instead: the resident rows, and every
    /// byte
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes, requires = "shape")]
    pub budget: Option<usize>,
    /// Problem of the report, in the form of elsa bench --shape
    #[arg(long, value_name = "SHAPE", requires = "budget")]
    pub shape: Option<Shape>,
    /// Element type of the report's problem
    #[arg(long, default_value = "f32", value_parser = dtype(), requires = "budget")]
    pub dtype: DType,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prints the memory report of a streamed run.
fn account(args: &InfoArgs, shape: Shape, budget: usize) -> Result<(), Error> {
    let engine = Engine::new(&EngineOptions::default())?;
    let plan = stream::plan(&engine, &shape.problem(args.dtype)?, budget)?;
    let mut out = crate::foreign::stdout();
    if args.json {
        let value = serde_json::json!({
            "what": "account",
            "host_budget": budget,
            "resident_rows": plan.resident_rows(),
            "chunk_keys": plan.choice().chunk,
            "account": stream::accounted(plan.account()),
        });
        return Ok(report::json(&mut out, &value)?);
    }
    writeln!(out, "budget    {budget} bytes")?;
    writeln!(
        out,
        "rows      {} stay while chunks of {} keys pass",
        plan.resident_rows(),
        plan.choice().chunk
    )?;
    for (part, bytes) in plan.account().iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "{:<10}{bytes} bytes", part.name())?;
    }
    writeln!(out, "total     {} bytes", plan.account().total())?;
    Ok(())
}

#[derive(Debug, Serialize)]
struct Gpu {
    name: String,
    driver: String,
    capability: String,
    sms: usize,
    memory_bytes: usize,
    integrated: bool,
    mhz: u32,
    /// Smallest numbers of tokens for which a plan of linear attention uses chunks instead of the recurrence. The first
    /// number is for one head of 32 columns, and the second is for eight heads of 128 columns.
    linear: [usize; 2],
    /// Kernels that the engine has loaded after creating a plan for one head of size 64.
    loaded: Vec<Loaded>,
}

impl Gpu {
    fn of(device: &DeviceInfo, engine: &Engine) -> Result<Gpu, Error> {
        let first = Shape::plain(1, 1, 64, 64, 64);
        engine.plan(&first.problem(DType::F32)?, &PlanOptions::default())?;
        let profile = &device.profile;
        Ok(Gpu {
            name: device.name.clone(),
            driver: format!("CUDA {}.{}", device.driver.0, device.driver.1),
            capability: format!("{}.{}", profile.capability.0, profile.capability.1),
            sms: profile.sms,
            linear: [1, 32].map(|blocks| LinearGpuChoice::crossover(profile.sms, blocks)),
            memory_bytes: device.memory,
            integrated: profile.integrated,
            mhz: profile.mhz,
            loaded: engine.loaded_kernels().into_iter().map(Loaded::from).collect(),
        })
    }
}

/// A file of tuned shapes: its path, whether it is used, its number of shapes, and the reason if it is not used.
#[derive(Debug, Serialize)]
struct TunedInfo {
    file: String,
    used: bool,
    shapes: usize,
    reason: Option<String>,
}

impl TunedInfo {
    fn of(tuned: &TunedFile) -> TunedInfo {
        let file = tuned.path.display().to_string();
        match &tuned.contents {
            Ok(contents) => TunedInfo { file, used: true, shapes: contents.shapes().len(), reason: None },
            Err(e) => TunedInfo { file, used: false, shapes: 0, reason: Some(e.to_string()) },
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn info(args: &InfoArgs) -> Result<(), Error> {
    if let (Some(budget), Some(shape)) = (args.budget, args.shape) {
        return account(args, shape, budget);
    }
    let (chosen, threads, gpu, tuned, linear, why) = match Engine::new(&EngineOptions::default()) {
        Ok(engine) => {
            let gpu = engine.device().map(|device| Gpu::of(device, &engine)).transpose()?;
            let why = match std::env::var("ELSA_BACKEND") {
                Ok(forced) if !forced.is_empty() => match engine.absence() {
                    Some(reason) => {
                        format!("the variable ELSA_BACKEND is {forced}, which cannot be used: {reason}")
                    }
                    None => format!("the variable ELSA_BACKEND is {forced}"),
                },
                _ => "the best that is present".to_string(),
            };
            let tuned = engine.tuned().map(TunedInfo::of);
            let linear = Crossover::all(&Crossovers::of(engine.cpu()));
            (Some(engine.backend().to_string()), Some(engine.threads()), gpu, tuned, linear, why)
        }
        Err(e) => (None, None, None, None, Vec::new(), format!("no engine: {e}")),
    };
    let machine = describe(&Root::machine());
    let (cpu, cores, caches, backends) =
        (machine::cpu_model(), machine::cores(), machine::caches(), backends());
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    // The profile of the known board, for comparison with the data that the system reports.
    let profile = machine.target.and_then(Profile::of);
    let mut out = crate::foreign::stdout();
    if args.json {
        let of_backend = |of: &Present| {
            object! {
                name: of.backend.name(),
                present: of.present,
                kernel: of.kernel,
                absence: of.absence.as_ref().map(ToString::to_string),
            }
        };
        let info = object! {
            what: "info",
            version: version,
            os: os,
            arch: arch,
            cpu: cpu,
            cores: cores,
            caches: caches,
            machine: machine,
            profile: profile,
            gpu: gpu,
            backends: backends.iter().map(of_backend).collect::<Vec<_>>(),
            chosen: chosen,
            why: why,
            threads: threads,
            // Smallest head sizes for which a plan of linear attention uses chunks instead of the recurrence, on the
            // CPU.
            linear: linear,
            // The tuned file that the request names.
            tuned: tuned,
        };
        return Ok(report::json(&mut out, &info)?);
    }
    let unknown = || "unknown".to_string();
    writeln!(out, "elsa      {version} ({os} {arch})")?;
    let cpu = cpu.as_deref().map_or_else(unknown, one_line);
    writeln!(out, "cpu       {cpu}, {cores} cores")?;
    let caches: Vec<String> =
        caches.iter().map(|c| format!("L{} {} {}", c.level, c.kind.to_lowercase(), c.size)).collect();
    writeln!(out, "caches    {}", if caches.is_empty() { unknown() } else { one_line(&caches.join(", ")) })?;
    board::identity(&mut out, &machine)?;
    if let Some(profile) = &profile {
        writeln!(out, "profile   {profile}")?;
        writeln!(out, "          {}", Crossover::line(profile.linear()))?;
    }
    board::state(&mut out, &machine)?;
    if let Some(gpu) = &gpu {
        writeln!(
            out,
            "gpu       {}, compute capability {}, {} SMs, {} MHz, {} bytes{}; driver of {}",
            one_line(&gpu.name),
            gpu.capability,
            gpu.sms,
            gpu.mhz,
            gpu.memory_bytes,
            if gpu.integrated { " shared with the CPU" } else { "" },
            gpu.driver
        )?;
        let [narrow, wide] = gpu.linear;
        let what = "linear attention by chunks instead of the recurrence";
        writeln!(out, "          {what} from {narrow} tokens, with 8 heads of 128 from {wide}")?;
        report::loaded(&mut out, &gpu.loaded)?;
    }
    for backend in &backends {
        let state = match (backend.present, backend.kernel, &backend.absence) {
            (true, Some(kernel), _) => format!("present, kernel {kernel}"),
            (true, None, _) => "present".to_string(),
            (false, _, Some(reason)) => format!("absent: {}", one_line(&reason.to_string())),
            (false, _, None) => "absent".to_string(),
        };
        writeln!(out, "backend   {:<8}{state}", backend.backend.name())?;
    }
    match (&chosen, threads) {
        (Some(chosen), Some(threads)) => {
            writeln!(out, "chosen    {chosen} with {}: {why}", count(threads as u64, "thread"))?;
        }
        _ => writeln!(out, "chosen    none: {}", one_line(&why))?,
    }
    if !linear.is_empty() {
        writeln!(out, "linear    {}", Crossover::line(&linear))?;
    }
    match &tuned {
        Some(TunedInfo { file, shapes, reason: None, .. }) => {
            writeln!(out, "tuned     {} of {}", count(*shapes as u64, "shape"), one_line(file))?;
        }
        Some(TunedInfo { file, reason: Some(reason), .. }) => {
            writeln!(out, "tuned     not used: {}: {}", one_line(file), one_line(reason))?;
        }
        None => writeln!(out, "tuned     not in use; --tuned or ELSA_TUNED names a file of elsa tune")?,
    }
    Ok(())
}
