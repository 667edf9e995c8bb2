//! The GPU plan: the kernels and the division of the work, decided once per shape.

use super::choice::{LinearGpuChoice, is_quadratic};
use super::choose::{Device, Walk, choose};
use super::layout::RegionOffsets;
use crate::cuda::driver::{Context, Function};
use crate::cuda::gpu::Gpu;
use crate::error::{DeviceError, PlanError};
use crate::linear::options::LinearPlanOptions;
use elsa_core::linear::{Direction, Form, Gates, Problem};
use elsa_core::plan::ChooseError;
use elsa_kernels::cuda::linear::{LinearLong, LinearQuadratic};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::sync::Arc;

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan {
    pub gpu: Arc<Gpu>,
    pub choice: LinearGpuChoice,
    pub layout: RegionOffsets,
    walk: &'static GpuKernel,
    /// The kernel with half the columns per block, if there is one for this choice.
    pairs: Option<&'static GpuKernel>,
    /// The kernel whose blocks compute the outputs of all heads that read a state. `None` if the choice does not need
    /// such a kernel in addition to the kernel that updates states.
    share: Option<&'static GpuKernel>,
    prepare: Option<&'static GpuKernel>,
    /// Kernels of a scan. The first one sums logarithms of gates, and is absent for a delta rule. The second one
    /// carries states over parts.
    scan: Option<(Option<&'static GpuKernel>, &'static GpuKernel)>,
    /// Kernels that compute all chunks at once.
    long: Option<Long<&'static GpuKernel>>,
    /// Kernel that computes the outputs in the quadratic form. The two fields after it are for rules that need more
    /// kernels. For a delta rule, `write` computes the values that tokens write. `last` computes the last state.
    parallel: Option<&'static GpuKernel>,
    write: Option<&'static GpuKernel>,
    last: Option<&'static GpuKernel>,
}

/// The kernels of a plan, loaded in a context.
#[derive(Clone, Debug)]
pub struct Kernels {
    pub walk: Loaded,
    /// The kernel with half the columns per block, and that number of columns.
    pub pairs: Option<(Loaded, usize)>,
    /// The kernel whose blocks compute the outputs of all heads that read a state.
    pub share: Option<Loaded>,
    pub prepare: Option<Loaded>,
    /// Kernels of a scan, as in [`GpuPlan`].
    pub scan: Option<(Option<Loaded>, Loaded)>,
    /// Kernels that compute all chunks at once.
    pub long: Option<Long<Loaded>>,
    /// Kernels of the quadratic form, as in [`GpuPlan`].
    pub parallel: Option<Loaded>,
    pub write: Option<Loaded>,
    pub last: Option<Loaded>,
}

/// Kernels that compute all chunks at once. Those of terms and outputs have another one for launches with few blocks.
#[derive(Clone, Copy, Debug)]
pub struct Long<K> {
    pub terms: BySize<K>,
    pub states: K,
    pub answers: BySize<K>,
}

/// A kernel for launches with many blocks, and one for launches with few.
#[derive(Clone, Copy, Debug)]
pub struct BySize<K> {
    many: K,
    few: K,
}

impl<K> BySize<K> {
    /// Returns the kernel for a launch of `blocks` blocks on a device with `sms` SMs. Measured on an H200 (132 SMs): with 256
    /// blocks the kernels for few are faster, with 512 those for many.
    pub fn of(self, blocks: usize, sms: usize) -> K {
        if LinearGpuChoice::is_few(blocks, sms) { self.few } else { self.many }
    }
}

/// A kernel of a plan, loaded in a context.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub function: Function,
    /// Number of threads per block.
    pub threads: u32,
}

/// Lists the kernels of this build that update states, for the chooser.
fn walks() -> impl Iterator<Item = Walk> + Clone {
    GPU_KERNELS.iter().filter_map(|kernel| match kernel.role {
        Role::LinearWalk { walk, .. } => Some((kernel.name, walk)),
        _ => None,
    })
}

/// Returns the number of state columns per block of a kernel that updates states.
fn columns(kernel: &GpuKernel) -> usize {
    match kernel.role {
        Role::LinearWalk { walk, .. } => walk.columns,
        _ => 1,
    }
}

/// Returns the kernel for a step of the computation of all chunks at once.
fn long(wanted: LinearLong, of_few: bool) -> Result<&'static GpuKernel, DeviceError> {
    let own =
        |role: &Role| matches!(role, Role::LinearLong { step, few, .. } if (*step, *few) == (wanted, of_few));
    let found = GPU_KERNELS.iter().find(|kernel| own(&kernel.role));
    found.ok_or(DeviceError::NoKernel { role: "a form of linear attention" })
}

impl LinearGpuChoice {
    /// Returns the chooser's decisions for `problem` on a device with `sms` SMs and `memory` bytes of memory.
    ///
    /// # Errors
    /// Returns an error if the kernels of this build do not support the problem or the options.
    pub fn of(
        problem: &Problem,
        sms: usize,
        memory: usize,
        options: &LinearPlanOptions,
    ) -> Result<LinearGpuChoice, ChooseError> {
        Ok(choose(problem, Device { sms, memory }, walks(), options)?.0)
    }
}

impl GpuPlan {
    /// Chooses the kernels and loads them.
    ///
    /// # Errors
    /// Returns an error if the kernels do not support the problem or the options, or if the device fails.
    pub fn new(gpu: &Arc<Gpu>, problem: &Problem, options: &LinearPlanOptions) -> Result<GpuPlan, PlanError> {
        let device = Device { sms: gpu.profile().sms, memory: gpu.info().memory };
        let (mut choice, layout) = choose(problem, device, walks(), options)?;
        let walk = GPU_KERNELS.iter().find(|kernel| kernel.name == choice.kernel);
        let walk = walk.ok_or(DeviceError::NoKernel { role: "linear attention" })?;
        let like = |shares, pairs| {
            let per_dim = problem.gates() == Gates::PerDim;
            GPU_KERNELS.iter().find(|kernel| match kernel.role {
                Role::LinearWalk { walk, .. } => {
                    (walk.shares, walk.pairs, walk.steps) == (shares, pairs, false)
                        && (walk.dims, walk.per_dim) == (choice.dims, per_dim)
                }
                _ => false,
            })
        };
        let share = match choice.shares && !choice.steps {
            true => Some(like(true, false).ok_or(DeviceError::NoKernel { role: "readers of a state" })?),
            false => None,
        };
        let pairs = if choice.pairs > 0 { like(false, true) } else { None };
        let own = (problem.gates() == Gates::PerDim, problem.rule().is_delta());
        let prepare = GPU_KERNELS.iter().find(|kernel| match kernel.role {
            Role::LinearPrepare { per_dim, delta, .. } => (per_dim, delta) == own,
            _ => false,
        });
        let prepare = match choice.form {
            Form::Recurrent => None,
            _ if choice.is_long() && choice.fused_below == 0 => None,
            form if is_quadratic(problem, form) => None,
            _ => Some(prepare.ok_or(DeviceError::NoKernel { role: "preparing linear attention" })?),
        };
        let find = |is: fn(&Role) -> bool| {
            let found = GPU_KERNELS.iter().find(|kernel| is(&kernel.role));
            found.ok_or(DeviceError::NoKernel { role: "a form of linear attention" })
        };
        let sums = match problem.gates() {
            Gates::PerHead | Gates::PerDim if !problem.rule().is_delta() => {
                Some(|role: &Role| matches!(role, Role::LinearSums { .. }))
            }
            _ => None,
        };
        let scan = match choice.form {
            Form::Scan => {
                let carry = find(|role| matches!(role, Role::LinearCarry { .. }))?;
                Some((sums.map(|is| find(is)).transpose()?, carry))
            }
            _ => None,
        };
        let sized = |step| Ok::<_, DeviceError>(BySize { many: long(step, false)?, few: long(step, true)? });
        let long = match choice.is_long() {
            true if own != (false, false) => {
                let (per_dim, _) = own;
                let terms = long(LinearLong::Solve { per_dim }, false)?;
                let answers = long(LinearLong::Answers, true)?;
                Some(Long {
                    terms: BySize { many: terms, few: terms },
                    states: long(LinearLong::Carry { dims: choice.dims }, false)?,
                    answers: BySize { many: answers, few: answers },
                })
            }
            true => Some(Long {
                terms: sized(LinearLong::Terms)?,
                states: long(LinearLong::States, false)?,
                answers: sized(LinearLong::Answers)?,
            }),
            false => None,
        };
        let by_pairs = is_quadratic(problem, choice.form);
        let step = |wanted, of_dims| {
            let found = GPU_KERNELS.iter().find(|kernel| match kernel.role {
                Role::LinearParallel { step, per_dim, .. } => (step, per_dim) == (wanted, of_dims),
                _ => false,
            });
            found.ok_or(DeviceError::NoKernel { role: "a form of linear attention" })
        };
        let (per_dim, delta) = own;
        let parallel = match choice.form {
            Form::Parallel if by_pairs => Some(step(LinearQuadratic::Answer, per_dim)?),
            Form::Parallel => Some(step(LinearQuadratic::Plain, false)?),
            _ => None,
        };
        let write = (by_pairs && delta).then(|| step(LinearQuadratic::Write, per_dim)).transpose()?;
        let last = by_pairs.then(|| step(LinearQuadratic::Last, false)).transpose()?;
        if let Some(parallel) = parallel.filter(|_| problem.spec().direction != Direction::NonCausal) {
            choice.kernel = parallel.name;
        }
        let blocks = choice.columns * problem.output_heads() * problem.sequences();
        let whole = matches!(choice.form, Form::Recurrent | Form::FusedChunk);
        if let Some(pairs) = pairs.filter(|_| whole && blocks <= choice.pairs) {
            choice.kernel = pairs.name;
        }
        if let Some(share) = share {
            choice.kernel = share.name;
        }
        if let Some(long) = long {
            choice.kernel = long.answers.many.name;
        }
        let plan = GpuPlan {
            gpu: gpu.clone(),
            choice,
            layout,
            walk,
            pairs,
            share,
            prepare,
            scan,
            long,
            parallel,
            write,
            last,
        };
        plan.load(&gpu.context()?)?;
        Ok(plan)
    }

    /// Returns the number of state columns per block of the kernel that updates the states.
    pub fn columns(&self) -> usize {
        columns(self.walk)
    }

    /// Loads the kernels in `context`.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a module.
    pub fn load(&self, context: &Arc<Context>) -> Result<Kernels, DeviceError> {
        let load = |kernel: &'static GpuKernel| {
            let function = self.gpu.function(context, kernel)?;
            Ok(Loaded { function, threads: kernel.resources().threads as u32 })
        };
        let scan = match self.scan {
            Some((sums, carry)) => Some((sums.map(load).transpose()?, load(carry)?)),
            None => None,
        };
        let [share, prepare, parallel, write, last] =
            [self.share, self.prepare, self.parallel, self.write, self.last]
                .map(|kernel| kernel.map(load).transpose());
        let pairs = match self.pairs {
            Some(kernel) => Some((load(kernel)?, columns(kernel))),
            None => None,
        };
        let sized = |of: BySize<_>| Ok::<_, DeviceError>(BySize { many: load(of.many)?, few: load(of.few)? });
        let long = match self.long {
            Some(Long { terms, states, answers }) => {
                Some(Long { terms: sized(terms)?, states: load(states)?, answers: sized(answers)? })
            }
            None => None,
        };
        let walk = load(self.walk)?;
        Ok(Kernels {
            walk,
            pairs,
            share: share?,
            prepare: prepare?,
            scan,
            long,
            parallel: parallel?,
            write: write?,
            last: last?,
        })
    }
}
