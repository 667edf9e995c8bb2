//! `elsa info`: what the machine has, and what would be chosen and why. `elsa warmup`: kernels loaded ahead.

use crate::args::{InfoArgs, Shape, WarmupArgs};
use crate::board;
use crate::error::Error;
use crate::job;
use elsa_core::attention::{Problem, Spec};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_runtime::{DeviceInfo, Engine, EngineOptions, LoadedKernel, PlanOptions, backends};
use serde::Serialize;
use std::io::Write;

#[derive(Debug, Serialize)]
struct BackendInfo {
    name: &'static str,
    present: bool,
    kernel: Option<&'static str>,
    /// Why the GPU is absent.
    absence: Option<String>,
}

/// A kernel that was loaded into the GPU.
#[derive(Debug, Serialize)]
struct Loaded {
    name: &'static str,
    /// `cubin`, or `ptx`, which the driver has compiled.
    form: &'static str,
    ptx_isa: String,
    load_ms: f64,
}

impl From<LoadedKernel> for Loaded {
    fn from(kernel: LoadedKernel) -> Loaded {
        let LoadedKernel { name, form, isa, ms } = kernel;
        Loaded { name, form, ptx_isa: isa, load_ms: ms }
    }
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
    /// What a first plan at head size 64 loads.
    loaded: Vec<Loaded>,
}

impl Gpu {
    fn of(device: &DeviceInfo, engine: &Engine) -> Result<Gpu, Error> {
        let first = Shape { batch: 1, heads: 1, queries: 64, keys: 64, dim: 64 };
        engine.plan(&problem(DType::F32, first)?, &PlanOptions::default())?;
        let profile = &device.profile;
        Ok(Gpu {
            name: device.name.clone(),
            driver: format!("CUDA {}.{}", device.driver.0, device.driver.1),
            capability: format!("{}.{}", profile.capability.0, profile.capability.1),
            sms: profile.sms,
            memory_bytes: device.memory,
            integrated: profile.integrated,
            mhz: profile.mhz,
            loaded: engine.loaded_kernels().into_iter().map(Loaded::from).collect(),
        })
    }
}

/// The problem of a shape: dense, `[batch, heads, tokens, dim]`.
///
/// # Errors
/// Sizes that make no problem.
pub fn problem(dtype: DType, shape: Shape) -> Result<Problem, Error> {
    let Shape { batch, heads, queries, keys, dim } = shape;
    let view = |name, tokens| View::dense(name, Layout::Bhnd, &[batch, heads, tokens, dim], None);
    let spec =
        Spec::new(dtype, view("q", queries)?, view("k", keys)?, view("v", keys)?, view("out", queries)?);
    Ok(spec.check()?)
}

#[derive(Debug, Serialize)]
struct Info {
    what: &'static str,
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cpu: Option<String>,
    cores: usize,
    caches: Vec<board::Cache>,
    board: Option<String>,
    target: Option<&'static str>,
    l4t: Option<String>,
    gpu: Option<Gpu>,
    backends: Vec<BackendInfo>,
    chosen: Option<String>,
    why: String,
    threads: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// Standard output that cannot be written.
pub fn info(args: &InfoArgs) -> Result<(), Error> {
    let (chosen, threads, gpu, why) = match Engine::new(&EngineOptions::default()) {
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
            (Some(engine.backend().to_string()), Some(engine.threads()), gpu, why)
        }
        Err(e) => (None, None, None, format!("no engine: {e}")),
    };
    let info = Info {
        what: "info",
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cpu: board::cpu_model(),
        cores: board::cores(),
        caches: board::caches(),
        board: board::model(),
        target: board::target(),
        l4t: board::l4t(),
        gpu,
        backends: backends()
            .into_iter()
            .map(|p| BackendInfo {
                name: p.backend.name(),
                present: p.present,
                kernel: p.kernel,
                absence: p.absence.map(|reason| reason.to_string()),
            })
            .collect(),
        chosen,
        why,
        threads,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", crate::json(&info)?)?;
        return Ok(());
    }
    let unknown = || "not told".to_string();
    writeln!(out, "elsa      {} ({} {})", info.version, info.os, info.arch)?;
    writeln!(out, "cpu       {}, {} cores", info.cpu.clone().unwrap_or_else(unknown), info.cores)?;
    let caches: Vec<String> =
        info.caches.iter().map(|c| format!("L{} {} {}", c.level, c.kind.to_lowercase(), c.size)).collect();
    writeln!(out, "caches    {}", if caches.is_empty() { unknown() } else { caches.join(", ") })?;
    if let Some(board) = &info.board {
        writeln!(out, "board     {board}")?;
    }
    if let Some(target) = &info.target {
        writeln!(out, "target    {target}")?;
    }
    if let Some(l4t) = &info.l4t {
        writeln!(out, "l4t       {l4t}")?;
    }
    if let Some(gpu) = &info.gpu {
        writeln!(
            out,
            "gpu       {}, compute capability {}, {} SMs, {} MHz, {} bytes{}; driver of {}",
            gpu.name,
            gpu.capability,
            gpu.sms,
            gpu.mhz,
            gpu.memory_bytes,
            if gpu.integrated { " shared with the CPU" } else { "" },
            gpu.driver
        )?;
        write_loaded(&mut out, &gpu.loaded)?;
    }
    for backend in &info.backends {
        let state = match (backend.present, backend.kernel, &backend.absence) {
            (true, Some(kernel), _) => format!("present, kernel {kernel}"),
            (true, None, _) => "present".to_string(),
            (false, _, Some(reason)) => format!("absent: {}", crate::error::one_line(reason)),
            (false, _, None) => "absent".to_string(),
        };
        writeln!(out, "backend   {:<8}{state}", backend.name)?;
    }
    match (&info.chosen, info.threads) {
        (Some(chosen), Some(threads)) => {
            writeln!(out, "chosen    {chosen} with {threads} threads: {}", info.why)?;
        }
        _ => writeln!(out, "chosen    none: {}", crate::error::one_line(&info.why))?,
    }
    Ok(())
}

fn write_loaded(out: &mut impl Write, loaded: &[Loaded]) -> std::io::Result<()> {
    for kernel in loaded {
        let Loaded { name, form, ptx_isa, load_ms } = kernel;
        writeln!(out, "loaded    {name} from {form}, PTX ISA {ptx_isa}, in {load_ms:.1} ms")?;
    }
    Ok(())
}

/// What is said below the flags of `elsa warmup`.
pub const WARMUP_HELP: &str = "\
The driver keeps what it compiles in its cache on disk, so that later processes load it in less time. On the CPU
there is nothing to load.";

#[derive(Debug, Serialize)]
struct Warmup {
    what: &'static str,
    backend: String,
    loaded: Vec<Loaded>,
    fallback: Option<String>,
}

/// Runs `elsa warmup`.
///
/// # Errors
/// An engine that cannot be had, and kernels that the driver refuses.
pub fn warmup(args: &WarmupArgs) -> Result<(), Error> {
    let engine = job::engine(&args.engine)?;
    let mut fallback = engine.absence().map(ToString::to_string);
    if args.shape.is_empty() {
        engine.load_kernels()?;
    }
    for shape in &args.shape {
        let plan = engine.plan(&problem(args.dtype, *shape)?, &args.engine.plan_options())?;
        fallback = fallback.or_else(|| plan.refusal().map(ToString::to_string));
    }
    let loaded: Vec<Loaded> = engine.loaded_kernels().into_iter().map(Loaded::from).collect();
    let warmup = Warmup { what: "warmup", backend: engine.backend().to_string(), loaded, fallback };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", crate::json(&warmup)?)?;
        return Ok(());
    }
    writeln!(out, "backend   {}", warmup.backend)?;
    if let Some(reason) = &warmup.fallback {
        writeln!(out, "fallback  {}", crate::error::one_line(reason))?;
    }
    Ok(write_loaded(&mut out, &warmup.loaded)?)
}
