//! `elsa run --quorum` without `--task`: computes all tasks of a division by quorums in one process, and merges their
//! states. The states of each task are in a file, so a call that ended early continues with the tasks that are left.

use super::args::RunArgs;
use super::inputs::sizes;
use super::task::{Computed, Target, compute};
use crate::args::values::Devices;
use crate::args::{Chunks, warn_without_effect};
use crate::error::{Error, say};
use crate::job::Job;
use crate::merge::{MergeArgs, join, outputs_allowed};
use crate::progress;
use crate::report::{self, count, object};
use crate::task::load::{refuse, supported};
use crate::task::origin;
use elsa_core::attention::Problem;
use elsa_core::quorum::{Division, Task, TaskPath};
use elsa_core::scan::stack::MergeStack;
use elsa_files::sums::Sums;
use elsa_files::task::Description;
use elsa_files::{SPARE, leaves_enough};
use elsa_runtime::{Engine, RunError, fixed_memory, peak_memory};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Largest number of tasks that a process computes.
const MOST_TASKS: u64 = 100_000;

/// Runs the command.
///
/// # Errors
/// Returns an error if the outputs are not computed and written completely. The outputs are then unchanged, unless the
/// error is a failed rename, and the files of complete tasks stay in the folder.
pub fn run(args: &RunArgs, chunks: &Chunks) -> Result<(), Error> {
    refuse(
        "quorum",
        &[
            (args.present_k.is_some(), "present-k"),
            (args.present_v.is_some(), "present-v"),
            (args.certificate, "certificate"),
            (args.stream.device_budget.is_some(), "device-budget"),
            (args.stream.eta.is_some(), "eta"),
            (args.stream.resume, "resume"),
        ],
    )?;
    supported("quorum", &args.problem)?;
    args.task.unused()?;
    args.traversal.excluded_by("quorum", true)?;
    let division = Division::new(&chunks.0).map_err(divided)?;
    if division.tasks() > MOST_TASKS {
        return Err(Error::Argument {
            argument: "quorum",
            found: format!("{} tasks", division.tasks()),
            allowed: format!("at most {MOST_TASKS} in one process"),
        });
    }
    let folder = Folder::of(args);
    let mut merge = folder.merge(args);
    outputs_allowed(&merge)?;
    // The outputs are prepared and dropped, so that a target that cannot be written is refused before the tasks run.
    drop(args.writer()?);

    let job = Job::headers(&args.problem, [false; 2])?;
    let problem = &job.problem;
    let numbers = args.devices.as_ref().map_or(&[][..], |Devices(numbers)| numbers);
    let engines = match numbers {
        [] => vec![(None, args.engine.engine()?)],
        numbers => args.engine.engines(numbers)?,
    };
    let engine = &engines[0].1;
    let options = args.engine.plan_options();
    let plan = engine.plan(problem, &options)?;
    warn_without_effect(&options, &plan);
    // The memory of finished tasks may stay with the allocator, which gives it to the merge, so it is not measured then.
    let process = fixed_memory(engine.threads());
    let paths = match args.stream.host_budget {
        Some(budget) => {
            let fixed = process.saturating_add(plan.state_workspace_bytes());
            let left = budget.saturating_sub(fixed) as u128;
            Fit { problem, division: &division, left, fixed, budget }.paths()?
        }
        None => (0..division.tasks())
            .map(|number| division.path(number))
            .collect::<Result<_, _>>()
            .map_err(divided)?,
    };
    drop(plan);
    folder.create()?;

    let bar = progress::bar(paths.len() as u64, 2.0 * job.multiplications() / 1e10);
    let next = AtomicUsize::new(0);
    let stop = || next.store(paths.len(), Ordering::Relaxed);
    let compute_on = |(number, engine): &(Option<usize>, Engine)| {
        let mut account = Account::default();
        let of_device = |source: Error| match *number {
            Some(number) => Error::OnDevice { number, source: source.into() },
            None => source,
        };
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let file = folder.file(path);
            let target = Target { argument: "task-dir", path: &file, alone: false };
            let there = |description: &Description, sums: &Sums| matches(&file, description, sums);
            let computed = compute(args, || Ok(engine.clone()), (&division, *path), target, there);
            // After a failure, no other device takes another task.
            let computed = computed.inspect_err(|_| stop()).map_err(of_device)?;
            account.add(path, &computed);
            bar.inc(1);
        }
        Ok(account)
    };
    let accounts = on_threads(&engines, compute_on, stop)?;
    merge.states.extend(paths.iter().map(|path| folder.file(path)));
    bar.finish_and_clear();
    let merged = join(&merge, process)?;
    folder.remove(&merge.states);

    let of_devices =
        || engines.iter().zip(&accounts).filter_map(|((n, engine), of)| Some(((*n)?, engine, of)));
    let devices: Vec<_> = of_devices()
        .map(|(number, engine, of)| {
            let name = engine.device().map_or("", |device| device.name.as_str());
            object! { device: number, name: name, tasks: &of.computed, ms: of.ms }
        })
        .collect();
    let account = accounts.iter().fold(Account::default(), Account::and);

    let mut tasks_of_level = vec![0usize; division.levels()];
    for path in &paths {
        if let Some(tasks) = path.depth().checked_sub(1).and_then(|level| tasks_of_level.get_mut(level)) {
            *tasks += 1;
        }
    }
    if args.json {
        let report = object! {
            what: "tasks",
            quorum: &chunks.0,
            tasks: paths.len(),
            // Number of tasks at each level of the division.
            tasks_of_level: tasks_of_level,
            // Tasks that this call computed; the files of all others had their states.
            computed: account.computed.len(),
            backend: engine.backend().to_string(),
            kernel: account.kernel,
            threads: engine.threads(),
            dtype: problem.spec().dtype.name(),
            shape: sizes(problem),
            pairs: account.pairs as f64,
            calls: account.calls[0],
            skipped: account.calls[1],
            bytes_read: account.bytes[0],
            bytes_written: account.bytes[1],
            workspace_bytes: account.bytes[2],
            host_budget: args.stream.host_budget,
            peak_bytes: peak_memory(),
            // Reason why the CPU computed a task instead of the requested GPU.
            fallback: account.fallback,
            // The GPUs of --devices, each with the tasks that it computed and their time.
            devices: devices,
            ms: account.ms,
            merge_ms: merged.ms,
        };
        return Ok(report::json(&mut crate::foreign::stdout(), &report)?);
    }
    say(&format!(
        "computed {} of {} in {:.3} ms ({}, {}, {})",
        account.computed.len(),
        count(paths.len() as u64, "task"),
        account.ms,
        engine.backend(),
        account.kernel.unwrap_or("no kernel"),
        count(engine.threads() as u64, "thread"),
    ));
    for (number, _, of) in of_devices() {
        let tasks = of.computed.join(" ");
        say(&format!(
            "device {number}: {} in {:.3} ms: {tasks}",
            count(of.computed.len() as u64, "task"),
            of.ms
        ));
    }
    merged.tell(&merge);
    Ok(())
}

/// Calls `work` once for each engine, each call on its own thread, and returns the results in the order of the engines.
/// `stop` makes running calls take no further task.
///
/// # Errors
/// Returns the error of the first engine whose call failed, or an error if the system cannot start a thread. All calls
/// have then ended.
fn on_threads(
    engines: &[(Option<usize>, Engine)],
    work: impl Fn(&(Option<usize>, Engine)) -> Result<Account, Error> + Sync,
    stop: impl Fn(),
) -> Result<Vec<Account>, Error> {
    let Some((first, others)) = engines.split_first() else { return Ok(Vec::new()) };
    let work = &work;
    thread::scope(|scope| {
        let mut started = Vec::new();
        for engine in others {
            let thread = leaves_enough("devices", SPARE).map_err(Error::from).and_then(|()| {
                thread::Builder::new().spawn_scoped(scope, move || work(engine)).map_err(|source| {
                    let allowed = "as many as the system can start a thread for".to_owned();
                    Error::Argument {
                        argument: "devices",
                        found: format!("{} GPUs ({source})", engines.len()),
                        allowed,
                    }
                })
            });
            match thread {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    stop();
                    return Err(error);
                }
            }
        }
        let own = work(first);
        let ended =
            |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or(Err(RunError::Panicked.into()));
        let all: Vec<_> = [own].into_iter().chain(started.into_iter().map(ended)).collect();
        all.into_iter().collect()
    })
}

/// Converts the error of a division.
fn divided(source: elsa_core::plan::ChooseError) -> Error {
    Error::Quorum { argument: "quorum", source }
}

/// Returns `true` if the file at `path` has the states that `description` and `sums` describe. If it has others, says so.
fn matches(path: &Path, description: &Description, sums: &Sums) -> bool {
    let same = origin::with("task-dir", path, |mut file, length| {
        let (found, task) = Description::read(&mut file, length)?;
        Ok(found == *description
            && found.sums(&task, &mut file, length)? == *sums
            && found.states(&task, &mut file, length)?.check().is_ok())
    });
    let same = same.unwrap_or(false);
    if !same && path.exists() {
        say(&format!("{}: not the states of this task; computing them again", path.display()));
    }
    same
}

/// Folder with the files of the tasks.
struct Folder {
    path: PathBuf,
    /// `true` if the folder is removed after success.
    passes: bool,
}

impl Folder {
    /// Returns the folder that the flags name, or the default one next to the output.
    fn of(args: &RunArgs) -> Folder {
        match (&args.task_dir, &args.out) {
            (Some(path), _) => Folder { path: path.clone(), passes: false },
            (None, out) => {
                let mut name = out.as_ref().map(|out| out.path.clone().into_os_string()).unwrap_or_default();
                name.push(".tasks");
                Folder { path: name.into(), passes: true }
            }
        }
    }

    /// Returns the flags of the merge, without the files.
    fn merge(&self, args: &RunArgs) -> MergeArgs {
        MergeArgs {
            states: Vec::new(),
            out: args.out.clone(),
            layout: args.problem.layout,
            lse_out: args.lse_out.clone(),
            state_out: args.state_out.clone(),
            dq_out: None,
            dk_out: None,
            dv_out: None,
            host_budget: args.stream.host_budget,
            force: args.force,
            run_id: args.task.run_id.clone(),
            json: false,
        }
    }

    /// Creates the folder if it does not exist.
    fn create(&self) -> Result<(), Error> {
        let made = fs::create_dir(&self.path);
        made.or_else(|e| if self.path.is_dir() { Ok(()) } else { Err(e) }).map_err(|source| Error::Write {
            argument: "task-dir",
            path: self.path.clone(),
            source,
        })
    }

    /// Returns the file of a task.
    fn file(&self, task: &TaskPath) -> PathBuf {
        self.path.join(format!("task-{task}.npz"))
    }

    /// Removes the files of the tasks, and the folder unless it has other files. Has no effect on a folder that a flag
    /// names.
    fn remove(&self, files: &[PathBuf]) {
        if !self.passes {
            return;
        }
        let removed = files.iter().try_for_each(fs::remove_file).and_then(|()| fs::remove_dir(&self.path));
        if let Err(e) = removed {
            log::info!("{}: not removed: {e}", self.path.display());
        }
    }
}

/// Totals over the tasks.
#[derive(Default)]
struct Account {
    /// The computed tasks.
    computed: Vec<String>,
    pairs: u128,
    /// Two numbers: the calls that ran, and the calls that were unnecessary.
    calls: [usize; 2],
    /// Three sizes in bytes: of the tensors that were read, of the states that were written, and of the largest workspace.
    bytes: [usize; 3],
    kernel: Option<&'static str>,
    fallback: Option<String>,
    /// Total time of a device's calls in milliseconds. For several devices, that of the device that took longest.
    ms: f64,
}

impl Account {
    fn add(&mut self, path: &TaskPath, of: &Computed) {
        let [read, written, workspace] = of.bytes;
        self.pairs += of.task.pair_count();
        self.bytes = [self.bytes[0] + read, self.bytes[1] + written, self.bytes[2].max(workspace)];
        if let Some((done, ms)) = &of.done {
            self.computed.push(path.to_string());
            self.calls = [self.calls[0] + done.calls, self.calls[1] + done.skipped];
            self.kernel = self.kernel.or(done.kernel);
            self.fallback = self.fallback.take().or_else(|| done.fallback.as_ref().map(ToString::to_string));
            self.ms += ms;
        }
    }

    /// Returns the totals of two devices that computed at the same time.
    fn and(mut self, other: &Account) -> Account {
        let [read, written, workspace] = other.bytes;
        self.computed.extend_from_slice(&other.computed);
        self.pairs += other.pairs;
        self.calls = [self.calls[0] + other.calls[0], self.calls[1] + other.calls[1]];
        self.bytes = [self.bytes[0] + read, self.bytes[1] + written, self.bytes[2].max(workspace)];
        self.kernel = self.kernel.or(other.kernel);
        self.fallback = self.fallback.or_else(|| other.fallback.clone());
        self.ms = self.ms.max(other.ms);
        self
    }
}

/// Choice of tasks that fit into a memory budget.
struct Fit<'a> {
    problem: &'a Problem,
    division: &'a Division,
    /// Number of bytes that the budget leaves for a task.
    left: u128,
    /// Number of bytes that the process uses in addition to a task.
    fixed: usize,
    budget: usize,
}

impl Fit<'_> {
    /// Returns the tasks, in the order of the merge tree: the largest ones that fit.
    fn paths(&self) -> Result<Vec<TaskPath>, Error> {
        let mut paths = Vec::new();
        self.divide(TaskPath::default(), &mut paths)?;
        Ok(paths)
    }

    /// Adds the tasks below `path`.
    fn divide(&self, path: TaskPath, paths: &mut Vec<TaskPath>) -> Result<(), Error> {
        let depth = path.depth();
        if depth > 0 {
            let bytes = self.bytes(&path)?;
            if bytes <= self.left {
                paths.push(path);
                return Ok(());
            }
            if depth == self.division.levels() {
                return Err(Error::Argument {
                    argument: "host-budget",
                    found: self.budget.to_string(),
                    allowed: format!(
                        "at least {} bytes, for task {path}; or one more level in --quorum",
                        bytes.saturating_add(self.fixed as u128)
                    ),
                });
            }
        }
        let chunks = self.division.sets().get(depth).map_or(0, |set| set.chunks());
        (0..chunks).try_for_each(|digit| match path.below(digit as u16) {
            Some(below) => self.divide(below, paths),
            None => Ok(()),
        })
    }

    /// Estimates the memory of a task: its tensors, states, calls' states and checksums.
    fn bytes(&self, path: &TaskPath) -> Result<u128, Error> {
        let (problem, spec) = (self.problem, self.problem.spec());
        let task = Task::new(self.division, path, spec.query.tokens(), problem.keys()).map_err(divided)?;
        let wide = |n: usize| n as u128;
        let [queries, keys] = [task.query_tokens(), task.key_tokens()].map(wide);
        let [heads, kv_heads, dim, value_dim] =
            [problem.heads(), problem.kv_heads(), problem.head_dim(), problem.value_dim()].map(wide);
        let batch = wide(spec.query.batch());
        let element = wide(spec.dtype.size());
        let tensors = batch * (heads * queries * dim + kv_heads * keys * (dim + value_dim)) * element;
        let longest = task.queries().iter().map(|run| run.span().tokens).max().map_or(0, wide);
        let calls = task.queries().iter().map(|run| task.keys_of(run).count()).max().unwrap_or(0);
        let slots = wide(MergeStack::capacity(calls));
        let states = batch * heads * (queries + longest * slots) * 4 * (value_dim + 2);
        let mask = spec.mask.map_or(0, |mask| {
            let [batch, heads, rows, columns] = mask.shape().map(wide);
            // The task's part of the mask, and a copy of a tile.
            2 * batch * heads * rows.min(queries) * columns.min(keys) * wide(mask.kind().size())
        });
        Ok(tensors + states + mask + 16 * (queries + keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::Spec;
    use elsa_core::dtype::DType;
    use elsa_core::quorum::Tree;
    use elsa_core::view::View;

    #[test]
    fn tasks_that_do_not_fit_are_divided() {
        let view = View::bhnd("q", [1, 2, 700, 8]).unwrap();
        let problem = Spec::new(DType::F32, view, view, view, view).check().unwrap();
        let division = Division::new(&[7, 3]).unwrap();
        let fit = |left| Fit { problem: &problem, division: &division, left, fixed: 1000, budget: 5 };
        let need = |path: &str| fit(0).bytes(&path.parse().unwrap()).unwrap();
        let needs: Vec<u128> = (0..7).map(|task| need(&task.to_string())).collect();
        let (least, most) = (*needs.iter().min().unwrap(), *needs.iter().max().unwrap());
        // Each task has 300 of 700 queries and keys in two heads: three tensors, and the states.
        assert!(least > 2 * 300 * (3 * 8 * 4 + 10 * 4) && need("0.0") < least);
        let count = |left| fit(left).paths().unwrap().len();
        assert_eq!((count(most), count(least - 1)), (7, 21));
        for left in [least - 1, least, most - 1, most, u128::MAX] {
            let mut paths = fit(left).paths().unwrap();
            assert!(paths.is_sorted());
            Tree::new(&division, &mut paths).unwrap();
        }
        let error = fit(10).paths().unwrap_err().to_string();
        assert!(error.contains("--host-budget: 5; allowed: at least "), "{error}");
        assert!(error.contains(&(need("0.0") + 1000).to_string()), "{error}");
    }
}
