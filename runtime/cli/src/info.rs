//! `elsa info`: what the machine has, and what would be chosen and why.

use crate::args::InfoArgs;
use crate::board;
use crate::error::Error;
use elsa_runtime::{Engine, EngineOptions, backends};
use serde::Serialize;
use std::io::Write;

#[derive(Debug, Serialize)]
struct BackendInfo {
    name: &'static str,
    present: bool,
    kernel: Option<&'static str>,
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
    let (chosen, threads, why) = match Engine::new(&EngineOptions::default()) {
        Ok(engine) => {
            let why = match std::env::var("ELSA_BACKEND") {
                Ok(forced) if !forced.is_empty() => format!("the variable ELSA_BACKEND is {forced}"),
                _ => "the best that is present".to_string(),
            };
            (Some(engine.backend().to_string()), Some(engine.threads()), why)
        }
        Err(e) => (None, None, format!("no engine: {e}")),
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
        backends: backends()
            .into_iter()
            .map(|p| BackendInfo { name: p.backend.name(), present: p.present, kernel: p.kernel })
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
    for backend in &info.backends {
        let state = match (backend.present, backend.kernel) {
            (true, Some(kernel)) => format!("present, kernel {kernel}"),
            (true, None) => "present".to_string(),
            (false, _) => "absent".to_string(),
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
