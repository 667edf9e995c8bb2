//! The direct convolution on a GPU.

use super::marshal::{push, series};
use super::plan::{Call, OnGpu};
use crate::cuda::launch::Launches;
use crate::cuda::marshal::int;
use crate::error::DeviceError;
use crate::series::tensors::{Types, of_convolution as number};
use crate::tensors::PerTensor;
use elsa_core::series::convolution::{Problem, Taps};
use elsa_kernels::cuda::Role;
use elsa_kernels::cuda::series::{
    ConvolutionArgs, NEWEST_LAST, ONE_FILTER, OUTPUTS, REVERSE, SILU, STATES, WARPS,
};
use elsa_kernels::cuda::tensor::Divisor;

impl OnGpu for Problem {
    const ROLE: &'static str = "convolution";

    fn is_own(role: &Role) -> bool {
        matches!(role, Role::Convolution { .. })
    }

    fn list(&self, types: &Types, at: &PerTensor<u64>, call: &Call<'_>) -> Result<Launches, DeviceError> {
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
            u: series(&s.u, at[number::U], types[number::U]),
            out: series(&s.out, at[number::OUT], types[number::OUT]),
            filter: at[number::FILTER],
            bias: at[number::BIAS],
            past: at[if s.in_place { number::PRESENT } else { number::PAST }],
            present: at[number::PRESENT],
            ..ConvolutionArgs::default()
        };
        let mut list = Launches::default();
        // The outputs first: in place, they read what the states replace.
        let outputs = if at[number::OUT] == 0 { 0 } else { self.batch() * blocks * tiles };
        let states = if at[number::PRESENT] == 0 { 0 } else { self.batch() * self.channels() };
        for (own, items) in [(0, outputs), (STATES, states)] {
            let args = ConvolutionArgs { flags: flags | own, items: int(items), ..args };
            // SAFETY: *parameter*: the kernel takes a `ConvolutionArgs`.
            unsafe { push(&mut list, call.kernel, items.div_ceil(WARPS), &args)? };
        }
        list.shared_by(if outputs == 0 { states } else { outputs }.div_ceil(WARPS));
        Ok(list)
    }
}
