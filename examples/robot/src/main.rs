//! The binary `elsa-robot`: reads the command line and opens everything that the loop needs, in the required order.
#![forbid(unsafe_code)]

use clap::Parser;
use elsa_robot::args::{BackendFlag, Cli};
use elsa_robot::error::Error;
use elsa_robot::frame::Geometry;
use elsa_robot::model::{Model, ModelError};
use elsa_robot::sink::Sink;
use elsa_robot::source::{Camera, Folder, Keep, Pipe, Source};
use elsa_robot::{realtime, robot};
use elsa_runtime::{Engine, EngineOptions, RunError};
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time without a frame after which a camera counts as failed, unless `--patience` is given.
const CAMERA_PATIENCE: Duration = Duration::from_secs(5);

/// Signals that follow the first signal within this time count as repetitions of the first signal, because timeout(1)
/// sends two signals.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Interval at which the engine's calls are cancelled again after a signal.
const CANCEL_AGAIN: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("ELSA_LOG", "warn")).init();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elsa-robot: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    let (stop, cancelled) = stop_on_signals()?;
    check_core(cli)?;
    // Source and sink start their threads before the loop gets its priority, so the threads do not inherit it.
    let mut source = source(cli)?;
    let sink = match &cli.serial {
        Some(path) => Sink::serial(path, cli.baud)?,
        None => Sink::stdout()?,
    };
    // The engine's workers start after the priority is set and inherit it, because the loop waits for them.
    let granted = |outcome: Result<(), realtime::Refused>| {
        if let Err(refused) = outcome {
            log::warn!("{refused}");
        }
    };
    if let Some(priority) = cli.priority {
        granted(realtime::prioritise(priority));
    }
    let backend = match cli.backend {
        BackendFlag::Auto => None,
        BackendFlag::Forced(backend) => Some(backend),
    };
    let threads = Some(cli.threads);
    let engine = EngineOptions::default().backend(backend).threads(threads).fallback(cli.fallback);
    let mut model = Model::open(&cli.model, &engine)?;
    // This succeeds, because the cell is set only here.
    let _ = cancelled.set(model.engine().clone());
    // The workers have started, so only the loop is bound to the core.
    if let Some(cpu) = cli.cpu {
        granted(realtime::pin(cpu));
    }
    // The warm-up accesses all memory once, before the memory is locked and the first frame arrives.
    match model.warm_up() {
        // A signal has cancelled the warm-up; the loop then ends at once.
        Err(ModelError::Run(RunError::Cancelled)) => {}
        done => done?,
    }
    if cli.lock_memory {
        granted(realtime::lock_memory());
    }
    let options = robot::Options { rate: cli.rate, frames: cli.frames, json: cli.json };
    let outcome = robot::run(options, source.as_mut(), &mut model, sink, &stop)?;
    robot::print(&outcome.summary, cli.json)?;
    outcome.fault.map_or(Ok(()), Err)
}

/// Returns a flag that SIGTERM, Ctrl-C and Ctrl-\ set, and a cell for the engine whose calls these signals cancel. A
/// signal that arrives [`SAME_REQUEST`] or more after the first ends the process at once.
fn stop_on_signals() -> Result<(Arc<AtomicBool>, Arc<OnceLock<Engine>>), Error> {
    let refused = |source| Error::System { what: "signals", source };
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in TERM_SIGNALS {
        // The signal handler itself sets the flag, so the interrupted code sees it at its next check.
        flag::register(signal, Arc::clone(&stop)).map_err(refused)?;
    }
    let mut signals = Signals::new(TERM_SIGNALS).map_err(refused)?;
    let engine = Arc::new(OnceLock::<Engine>::new());
    let cancelled = Arc::clone(&engine);
    let wait = move || {
        let mut first: Option<Instant> = None;
        loop {
            let came: Vec<i32> = match first {
                None => signals.wait().collect(),
                Some(_) => {
                    std::thread::sleep(CANCEL_AGAIN);
                    signals.pending().collect()
                }
            };
            for signal in came {
                if first.get_or_insert_with(Instant::now).elapsed() >= SAME_REQUEST
                    && let Err(e) = low_level::emulate_default_handler(signal)
                {
                    log::warn!("signal {signal}: {e}");
                }
            }
            // A call may begin just after the loop has checked the flag, so calls are cancelled repeatedly.
            if let Some(engine) = cancelled.get() {
                engine.cancel();
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).stack_size(1 << 17).spawn(wait).map_err(refused)?;
    Ok((stop, engine))
}

fn check_core(cli: &Cli) -> Result<(), Error> {
    let Some(found) = cli.cpu else { return Ok(()) };
    let cores = realtime::cores().map_err(|source| Error::System { what: "cpu", source })?;
    if cores.contains(&found) {
        return Ok(());
    }
    let allowed = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    Err(Error::Cpu { found, allowed })
}

fn source(cli: &Cli) -> Result<Box<dyn Source>, Error> {
    let geometry = Geometry::dense(cli.size, cli.format);
    let input = &cli.input;
    Ok(if let Some(path) = &input.images {
        Box::new(Folder::open(path, cli.repeat)?)
    } else if let Some(path) = &input.pipe {
        let keep = if cli.newest { Keep::Newest } else { Keep::All };
        Box::new(Pipe::open(path, geometry, keep, cli.patience)?)
    } else {
        // The command line has exactly one of the three inputs, so the default is never used.
        let path = input.camera.as_deref().unwrap_or(std::path::Path::new("/dev/video0"));
        let patience = cli.patience.unwrap_or(CAMERA_PATIENCE);
        Box::new(Camera::open(path, cli.size, cli.format, cli.rate, patience)?)
    })
}
