//! Launches the recurrence on a GPU.

use super::marshal::{push, series};
use super::plan::{Call, OnGpu};
use crate::cuda::launch::Launches;
use crate::cuda::marshal::int;
use crate::error::DeviceError;
use crate::tensors::DeviceTensors;
use elsa_core::series::recurrence::{Gate, Operand, Problem};
use elsa_kernels::cuda::Role;
use elsa_kernels::cuda::series::{CARRY, FOLD, LOG, Parts, REVERSE, RecurrenceArgs, WARPS};
use elsa_kernels::cuda::tensor::Divisor;

impl OnGpu for Problem {
    const ROLE: &'static str = "recurrence";

    fn is_own(role: &Role) -> bool {
        matches!(role, Role::Recurrence { .. })
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
            (args, items.div_ceil(WARPS))
        };
        let carried = [(FOLD, parts - 1), (CARRY, 1)].into_iter().filter(|_| parts > 1);
        for (flags, listed) in carried.chain([(0, parts)]) {
            let (args, blocks) = of(flags, listed);
            // SAFETY: *parameter*: the kernel takes a `RecurrenceArgs`.
            unsafe { push(&mut list, call.kernel, blocks, &args)? };
        }
        Ok(list)
    }
}
