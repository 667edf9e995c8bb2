//! What is decided and allocated for a GPU once per shape.

use super::Gpu;
use super::driver::{Context, DeviceBuffer, Entered, Event, Function, PinnedBuffer, RawStream, Stream};
use crate::error::DeviceError;
use elsa_core::plan::{GpuChoice, GpuLayout, GpuOptions, GpuSpec, SEQUENCE_BYTES, choose_gpu};
use elsa_core::problem::Problem;
use elsa_core::view::View;
use elsa_kernels::cuda::call::Sequence;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::sync::Arc;

const _: () = assert!(size_of::<Sequence>() == SEQUENCE_BYTES);

/// A plan for a GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan {
    pub gpu: Arc<Gpu>,
    pub choice: GpuChoice,
    pub layout: GpuLayout,
    pub attention: &'static GpuKernel,
    pub budget: Option<usize>,
}

/// The kernels of a plan, in a context.
#[derive(Clone, Debug)]
pub struct Functions {
    pub attention: Function,
    pub merge: Option<Function>,
    pub present: Option<Function>,
}

/// What the chooser sees of an attention kernel.
fn spec(kernel: &GpuKernel) -> Option<GpuSpec> {
    match kernel.role {
        Role::Attention { head_dim, half, half_scores, most_queries, most_plain } => Some(GpuSpec {
            name: kernel.name,
            head_dim,
            half,
            half_scores,
            most_queries,
            most_plain,
            threads: kernel.threads as usize,
            rows: kernel.rows,
            keys: kernel.keys,
            shared: kernel.shared,
            registers: kernel.registers,
            flush: kernel.flush,
        }),
        Role::Merge { .. } | Role::Present => None,
    }
}

/// The kernel of a role that has one.
pub fn of_role(role: Role, name: &'static str) -> Result<&'static GpuKernel, DeviceError> {
    GPU_KERNELS.iter().find(|k| k.role == role).ok_or(DeviceError::NoKernel { role: name })
}

/// The kernel that merges `splits` partial states of a row, and how many it takes in at once: of those that suffice
/// the one for the fewest.
///
/// # Errors
/// None that suffices.
pub fn merging(splits: usize) -> Result<(&'static GpuKernel, usize), DeviceError> {
    let suffices = |k: &'static GpuKernel| match k.role {
        Role::Merge { states, most } if splits <= most => Some((most, states, k)),
        _ => None,
    };
    let least = GPU_KERNELS.iter().filter_map(suffices).min_by_key(|(most, ..)| *most);
    least.map(|(_, states, k)| (k, states)).ok_or(DeviceError::NoKernel { role: "merging" })
}

impl GpuPlan {
    /// Chooses, and loads the kernels.
    ///
    /// # Errors
    /// A problem that the kernels do not take, and a device that fails.
    pub fn new(
        gpu: &Arc<Gpu>,
        problem: &Problem,
        options: GpuOptions,
    ) -> Result<GpuPlan, crate::error::PlanError> {
        let specs = GPU_KERNELS.iter().filter_map(spec).collect::<Vec<_>>();
        let choice = choose_gpu(problem, gpu.profile(), &specs, &options)?;
        let attention = GPU_KERNELS
            .iter()
            .find(|k| k.name == choice.kernel.name)
            .ok_or(elsa_core::plan::PlanError::NoKernel)?;
        let layout =
            GpuLayout::of(&choice, false).ok_or(elsa_core::plan::PlanError::Memory { needed: usize::MAX })?;
        let plan = GpuPlan { gpu: gpu.clone(), choice, layout, attention, budget: options.budget };
        plan.functions(&gpu.context()?, problem, false)?;
        Ok(plan)
    }

    /// The kernels that a run needs.
    ///
    /// # Errors
    /// A module that the driver refuses.
    pub fn functions(
        &self,
        context: &Arc<Context>,
        problem: &Problem,
        states: bool,
    ) -> Result<Functions, DeviceError> {
        let merge = match self.choice.divided() || states {
            true => Some(self.gpu.function(context, merging(self.choice.splits)?.0)?),
            false => None,
        };
        let s = problem.spec();
        let present = match s.present_key.is_some() || s.present_value.is_some() {
            true => Some(self.gpu.function(context, of_role(Role::Present, "the present")?)?),
            false => None,
        };
        Ok(Functions { attention: self.gpu.function(context, self.attention)?, merge, present })
    }

    /// Bytes of staging for the host tensors of a problem, states apart.
    pub fn staging_bytes(&self, problem: &Problem) -> usize {
        Staging::of(problem).map_or(usize::MAX, |staging| staging.bytes)
    }

    /// Allocates what runs need; staging too, unless the device may use the caller's memory in place.
    ///
    /// # Errors
    /// Memory that is not there, and a device that fails.
    pub fn workspace(&self, problem: &Problem) -> Result<GpuWorkspace, DeviceError> {
        let context = self.gpu.context()?;
        let mut workspace = GpuWorkspace::new(self, &context, problem)?;
        if !self.gpu.profile().integrated {
            workspace.reserve_staging(problem)?;
        }
        Ok(workspace)
    }
}

/// Where the tensors of a problem lie in device memory when the caller's are in host memory. Offsets in bytes;
/// a tensor that there is not has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staging {
    pub query: usize,
    pub key: usize,
    pub value: usize,
    pub past_key: usize,
    pub past_value: usize,
    pub mask: usize,
    pub output: usize,
    pub present_key: usize,
    pub present_value: usize,
    pub lse: usize,
    pub bytes: usize,
}

/// Bytes of a view.
pub fn view_bytes(view: &View, problem: &Problem) -> usize {
    view.extent() * problem.spec().dtype.size()
}

impl Staging {
    /// Lays out the staging; none if it cannot be counted.
    pub fn of(problem: &Problem) -> Option<Staging> {
        let s = problem.spec();
        let mut at = 0usize;
        let mut take = |bytes: usize| {
            let start = at;
            at = at.checked_add(bytes)?.checked_next_multiple_of(256)?;
            Some(start)
        };
        let bytes = |view: Option<&View>| view.map_or(0, |view| view_bytes(view, problem));
        let mask = s.mask.as_ref().map_or(0, |mask| {
            let size = match mask.kind() {
                elsa_core::mask::MaskKind::Bool => 1,
                elsa_core::mask::MaskKind::Additive(dtype) => dtype.size(),
            };
            mask.extent() * size
        });
        let mut staging = Staging {
            query: take(bytes(Some(&s.query)))?,
            key: take(bytes(Some(&s.key)))?,
            value: take(bytes(Some(&s.value)))?,
            past_key: take(bytes(s.past_key.as_ref()))?,
            past_value: take(bytes(s.past_value.as_ref()))?,
            mask: take(mask)?,
            output: take(bytes(Some(&s.output)))?,
            present_key: take(bytes(s.present_key.as_ref()))?,
            present_value: take(bytes(s.present_value.as_ref()))?,
            lse: take(problem.rows().checked_mul(4)?)?,
            bytes: 0,
        };
        staging.bytes = at;
        Some(staging)
    }
}

/// Memory that the runs of a plan work in, on one device.
///
/// Fields are dropped in order: what is pending is waited for before its memory goes.
#[derive(Debug)]
pub struct GpuWorkspace {
    /// What device-bound runs have enqueued.
    pub pending: Pending,
    pub context: Arc<Context>,
    pub stream: Stream,
    /// Partial states and the table of sequences, as the plan's layout has them.
    pub parts: DeviceBuffer,
    /// Partial states where states are given and the keys are not divided.
    pub state_parts: Option<DeviceBuffer>,
    /// Host tensors on the device.
    pub staging: Option<DeviceBuffer>,
    /// States on the device, on their way to the host.
    pub states: Option<DeviceBuffer>,
    /// The table of sequences on the host.
    pub table: PinnedBuffer,
    /// Rows of an output that is not dense, on their way to the caller.
    pub bounce: Vec<u8>,
    /// The table's copy to the device is done.
    pub uploaded: Event,
}

/// Work that was enqueued and not waited for.
#[derive(Debug)]
pub struct Pending {
    context: Arc<Context>,
    /// All of it is done.
    done: Event,
    busy: bool,
}

impl Pending {
    /// Marks the end of what is in the stream. Whatever comes of it, there may be work.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn mark(&mut self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        self.busy = true;
        self.done.record(entered, stream)
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        if std::mem::take(&mut self.busy) && !self.context.is_lost() {
            let entered = self.context.enter()?;
            self.done.synchronize(&entered)?;
        }
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Err(e) = self.wait() {
            log::debug!("while waiting for a device: {e}");
        }
    }
}

impl GpuWorkspace {
    /// Allocates what every run needs.
    ///
    /// # Errors
    /// Memory that is not there, and a device that fails.
    pub fn new(
        plan: &GpuPlan,
        context: &Arc<Context>,
        problem: &Problem,
    ) -> Result<GpuWorkspace, DeviceError> {
        let mut bounce = Vec::new();
        reserve_bounce(&mut bounce, problem)?;
        Ok(GpuWorkspace {
            stream: Stream::new(context)?,
            parts: DeviceBuffer::new(context, plan.layout.bytes)?,
            state_parts: None,
            staging: None,
            states: None,
            table: PinnedBuffer::new(context, plan.layout.sequences.len)?,
            bounce,
            uploaded: Event::new(context)?,
            pending: Pending { context: context.clone(), done: Event::new(context)?, busy: false },
            context: context.clone(),
        })
    }

    /// Makes room for host tensors, if there is none.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn reserve_staging(&mut self, problem: &Problem) -> Result<(), DeviceError> {
        let bytes = Staging::of(problem).map_or(usize::MAX, |staging| staging.bytes);
        reserve(&self.context, &mut self.staging, bytes)
    }

    /// Makes room for outputs with gaps, if there is none.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn reserve_bounce(&mut self, problem: &Problem) -> Result<(), DeviceError> {
        reserve_bounce(&mut self.bounce, problem)
    }

    /// Makes room for states on the device, if there is none: `[rows]`, `[rows]`, `[rows][value_dim]`.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn reserve_states(&mut self, problem: &Problem) -> Result<(), DeviceError> {
        let bytes = problem.rows().saturating_mul(problem.value_dim() + 2).saturating_mul(4);
        reserve(&self.context, &mut self.states, bytes)
    }

    /// Makes room for the partial states of undivided keys, if there is none.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn reserve_state_parts(&mut self, bytes: usize) -> Result<(), DeviceError> {
        reserve(&self.context, &mut self.state_parts, bytes)
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// The first error that the driver reports; the rest is given back all the same.
    pub fn close(self) -> Result<(), DeviceError> {
        let GpuWorkspace {
            mut pending, stream, parts, state_parts, staging, states, table, uploaded, ..
        } = self;
        let mut closed = vec![pending.wait(), parts.close(), table.close()];
        closed.extend([state_parts, staging, states].into_iter().flatten().map(DeviceBuffer::close));
        closed.extend([uploaded.close(), stream.close()]);
        closed.into_iter().collect()
    }
}

fn reserve_bounce(bounce: &mut Vec<u8>, problem: &Problem) -> Result<(), DeviceError> {
    let s = problem.spec();
    let loose = |view: Option<&View>| match view {
        Some(view) if view.extent() != view.count() => view_bytes(view, problem),
        _ => 0,
    };
    let bytes = [Some(&s.output), s.present_key.as_ref(), s.present_value.as_ref()].map(loose);
    let bytes = bytes.into_iter().max().unwrap_or(0);
    if bounce.len() < bytes {
        bounce.try_reserve_exact(bytes - bounce.len()).map_err(|_| DeviceError::HostMemory { bytes })?;
        bounce.resize(bytes, 0);
    }
    Ok(())
}

fn reserve(
    context: &Arc<Context>,
    buffer: &mut Option<DeviceBuffer>,
    bytes: usize,
) -> Result<(), DeviceError> {
    if buffer.as_ref().is_none_or(|b| b.bytes() < bytes) {
        // What is too small goes first, so that its room can be used.
        if let Some(small) = buffer.take() {
            small.close()?;
        }
        *buffer = Some(DeviceBuffer::new(context, bytes)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::bound::rounding::APPROXIMATION;
    use elsa_core::mask::{MaskKind, MaskView};
    use elsa_core::problem::Spec;
    use elsa_core::view::{DType, Layout};

    #[test]
    fn kernels_are_within_what_the_bound_counts() {
        let mut attention = 0;
        for kernel in GPU_KERNELS {
            let Some(spec) = spec(kernel) else { continue };
            attention += 1;
            assert!(kernel.exp2_relative <= APPROXIMATION * DType::F32.unit_roundoff(), "{}", kernel.name);
            assert_eq!(spec.half_scores, kernel.half_chain > 0, "{}", kernel.name);
            assert!(spec.rows > 0 && spec.keys > 0 && spec.threads.is_multiple_of(32), "{}", kernel.name);
        }
        assert!(attention > 0);
        assert!(of_role(Role::Present, "the present").is_ok());
        // The one for few states where it suffices, and one for any number.
        let names = [1, 2, 4, 5, 8, 9, 1 << 20].map(|splits| merging(splits).unwrap().0.name);
        let (few, many) = ("merge_f32_s4__sm62", "merge_f32_s8__sm62");
        assert_eq!(names, [few, few, few, many, many, many, many]);
    }

    #[test]
    fn staging_holds_every_tensor_apart() {
        let view = |n, d| View::dense("x", Layout::Bhnd, &[2, 3, n, d], None).unwrap();
        let mut spec = Spec::new(DType::F16, view(5, 8), view(7, 8), view(7, 4), view(5, 4));
        (spec.past_key, spec.past_value) = (Some(view(2, 8)), Some(view(2, 4)));
        (spec.present_key, spec.present_value) = (Some(view(9, 8)), Some(view(9, 4)));
        spec.mask = Some(MaskView::dense(MaskKind::Additive(DType::F32), &[5, 9]).unwrap());
        let s = Staging::of(&spec.check().unwrap()).unwrap();
        let starts = [
            s.query,
            s.key,
            s.value,
            s.past_key,
            s.past_value,
            s.mask,
            s.output,
            s.present_key,
            s.present_value,
            s.lse,
            s.bytes,
        ];
        let bytes = [
            2 * 3 * 5 * 8 * 2,
            2 * 3 * 7 * 8 * 2,
            2 * 3 * 7 * 4 * 2,
            2 * 3 * 2 * 8 * 2,
            2 * 3 * 2 * 4 * 2,
            5 * 9 * 4,
            2 * 3 * 5 * 4 * 2,
            2 * 3 * 9 * 8 * 2,
            2 * 3 * 9 * 4 * 2,
            2 * 3 * 5 * 4,
        ];
        for (pair, bytes) in starts.windows(2).zip(bytes) {
            assert!(pair[0].is_multiple_of(256) && pair[1] >= pair[0] + bytes, "{s:?}");
            assert!(pair[1] < pair[0] + bytes + 256, "{s:?}");
        }
    }
}
