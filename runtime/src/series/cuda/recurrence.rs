//! Launches the recurrence on a GPU.

use super::marshal::{push, series};
use super::plan::{Call, OnGpu, passes};
use crate::cuda::launch::Launches;
use crate::cuda::marshal::int;
use crate::error::DeviceError;
use crate::tensors::DeviceTensors;
use elsa_core::series::recurrence::{Gate, Operand, Problem};
use elsa_kernels::cuda::Role;
use elsa_kernels::cuda::series::{CARRY, LANES, LOG, Parts, REVERSE, RecurrenceArgs};
use elsa_kernels::cuda::tensor::Divisor;

impl OnGpu for Problem {
    const ROLE: &'static str = "recurrence";

    fn is_own(role: &Role, flag: i32, by_channel: bool) -> bool {
        match role {
            Role::Recurrence { .. } => flag != CARRY && !by_channel,
            Role::RecurrenceCarry { .. } => flag == CARRY && !by_channel,
            _ => false,
        }
    }

    fn list(
        &self,
        mut list: Launches,
        DeviceTensors { at, types }: &DeviceTensors<'_, Operand>,
        call: &Call<'_>,
    ) -> Result<Launches, DeviceError> {
        let (s, tiles, parts) = (self.spec(), call.choice.tiles, call.choice.parts);
        let flag = |flag, on| if on { flag } else { 0 };
        let own = flag(REVERSE, s.reverse) | flag(LOG, s.gate == Gate::Log);
        let of = |flags: i32, listed: usize| {
            let items = self.batch() * tiles * listed;
            let args = RecurrenceArgs {
                by_tiles: Divisor::new(int(tiles)),
                tiles: int(tiles),
                items: int(items),
                channels: int(self.channels()),
                tokens: int(self.tokens()),
                batch: int(self.batch()),
                flags: own | flags,
                parts: Parts::of(self.tokens(), parts, listed),
                a: series(&s.a, at[Operand::Gates], types[Operand::Gates]),
                b: series(&s.b, at[Operand::Addends], types[Operand::Addends]),
                out: series(&s.out, at[Operand::Output], types[Operand::Output]),
                past: at[if s.in_place { Operand::PresentState } else { Operand::PastState }],
                present: at[Operand::PresentState],
                maps: call.scratch,
            };
            let lanes = if flags == CARRY { self.batch() * self.channels() } else { items * LANES };
            (args, lanes)
        };
        for (kernel, flags, listed) in passes(call.kernels, parts) {
            let (args, lanes) = of(flags, listed);
            // SAFETY: *parameter*: the kernel takes a `RecurrenceArgs`.
            unsafe { push(&mut list, kernel, lanes.div_ceil(kernel.1 as usize), &args)? };
        }
        Ok(list)
    }
}
