//! Launches the direct convolution on a GPU.

use super::marshal::{push, series};
use super::plan::{Call, OnGpu};
use crate::cuda::launch::Launches;
use crate::cuda::marshal::int;
use crate::error::DeviceError;
use crate::tensors::DeviceTensors;
use elsa_core::series::convolution::{Operand, Problem, Taps};
use elsa_kernels::cuda::Role;
use elsa_kernels::cuda::series::{
    ConvolutionArgs, NEWEST_LAST, ONE_FILTER, OUTPUTS, REVERSE, SILU, STATES, WARPS,
};
use elsa_kernels::cuda::tensor::Divisor;

impl OnGpu for Problem {
    const ROLE: &'static str = "convolution";

    fn is_own(role: &Role, _flag: i32, by_channel: bool) -> bool {
        matches!(role, Role::Convolution { .. }) && !by_channel
    }

    fn list(
        &self,
        mut list: Launches,
        DeviceTensors { at, types }: &DeviceTensors<'_, Operand>,
        call: &Call<'_>,
    ) -> Result<Launches, DeviceError> {
        let (s, tiles) = (self.spec(), call.choice.tiles);
        let blocks = self.tokens().div_ceil(OUTPUTS);
        let flag = |flag, on| if on { flag } else { 0 };
        let flags = flag(REVERSE, s.reverse)
            | flag(SILU, s.silu)
            | flag(NEWEST_LAST, s.order == Taps::NewestLast)
            | flag(ONE_FILTER, s.shared);
        let args = ConvolutionArgs {
            by_tiles: Divisor::new(int(tiles)),
            by_blocks: Divisor::new(int(blocks)),
            by_channels: Divisor::new(int(self.channels())),
            tiles: int(tiles),
            blocks: int(blocks),
            channels: int(self.channels()),
            tokens: int(self.tokens()),
            taps: int(self.taps()),
            u: series(&s.u, at[Operand::Signal], types[Operand::Signal]),
            out: series(&s.out, at[Operand::Output], types[Operand::Output]),
            filter: at[Operand::Filter],
            bias: at[Operand::Bias],
            past: at[if s.in_place { Operand::PresentState } else { Operand::PastState }],
            present: at[Operand::PresentState],
            ..ConvolutionArgs::default()
        };
        // The outputs come first, because they read past inputs, and the present states may overwrite the memory of
        // these inputs.
        let outputs = if at[Operand::Output] == 0 { 0 } else { self.batch() * blocks * tiles };
        let states = if at[Operand::PresentState] == 0 { 0 } else { self.batch() * self.channels() };
        for (own, items) in [(0, outputs), (STATES, states)] {
            let args = ConvolutionArgs { flags: flags | own, items: int(items), ..args };
            // SAFETY: *parameter*: the kernel takes a `ConvolutionArgs`.
            unsafe { push(&mut list, call.kernels[0], items.div_ceil(WARPS), &args)? };
        }
        list.shared_by(if outputs == 0 { states } else { outputs }.div_ceil(WARPS));
        Ok(list)
    }
}
