//! Launches the selective scan on a GPU.

use super::marshal::{push, series};
use super::plan::{Call, OnGpu, passes};
use crate::cuda::launch::Launches;
use crate::cuda::marshal::{dtype, int};
use crate::error::DeviceError;
use crate::tensors::DeviceTensors;
use elsa_core::dtype::DType;
use elsa_core::series::selective::{Coefficient, Operand, Problem};
use elsa_kernels::cuda::Role;
use elsa_kernels::cuda::series::{
    B_OF_CHANNEL, C_OF_CHANNEL, CARRY, LANES, Parts, REVERSE, SOFTPLUS, SelectiveArgs, SeriesTensor,
    channels_of, lanes_of, map_of,
};
use elsa_kernels::cuda::tensor::{DeviceTensor, Divisor};

impl OnGpu for Problem {
    const ROLE: &'static str = "selective scan";

    fn is_own(role: &Role, flag: i32, by_channel: bool) -> bool {
        match role {
            Role::Selective { .. } => flag != CARRY && !by_channel,
            Role::SelectiveCarry { .. } => flag == CARRY,
            Role::SelectiveS16 { flag: own, .. } => flag == *own && by_channel,
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
        let lanes = lanes_of(self.states());
        let group = self.tile_group().clamp(1, self.channels().max(1));
        let tiles_of_group = group.div_ceil(channels_of(lanes));
        let [b_group, c_group] = [self.group(&s.b), self.group(&s.c)].map(int);
        let coefficient = |of: &Coefficient, at: u64, of_type| match of {
            Coefficient::Token(of) => series(of, at, of_type),
            Coefficient::Channel => SeriesTensor {
                tensor: DeviceTensor { data: at, ..DeviceTensor::default() },
                dtype: dtype(of_type),
                ..SeriesTensor::default()
            },
        };
        let flag = |flag, on| if on { flag } else { 0 };
        let own = flag(REVERSE, s.reverse)
            | flag(SOFTPLUS, s.softplus)
            | flag(B_OF_CHANNEL, s.b == Coefficient::Channel)
            | flag(C_OF_CHANNEL, s.c == Coefficient::Channel);
        let args = SelectiveArgs {
            by_tiles: Divisor::new(int(tiles)),
            by_tiles_of_group: Divisor::new(int(tiles_of_group)),
            by_b: Divisor::new(b_group),
            by_c: Divisor::new(c_group),
            tiles: int(tiles),
            tiles_of_group: int(tiles_of_group),
            group: int(group),
            b_group,
            c_group,
            lanes: lanes as i32,
            channels: int(self.channels()),
            states: int(self.states()),
            tokens: int(self.tokens()),
            batch: int(self.batch()),
            u: series(&s.u, at[Operand::Signal], types[Operand::Signal]),
            delta: series(&s.delta, at[Operand::Steps], types[Operand::Steps]),
            z: s.z.map_or(SeriesTensor::default(), |z| series(&z, at[Operand::Gate], types[Operand::Gate])),
            out: series(&s.out, at[Operand::Output], types[Operand::Output]),
            b: coefficient(&s.b, at[Operand::IntoState], types[Operand::IntoState]),
            c: coefficient(&s.c, at[Operand::OutOfState], types[Operand::OutOfState]),
            a: at[Operand::Rates],
            skip: at[Operand::Skip],
            bias: at[Operand::StepBias],
            past: at[if s.in_place { Operand::PresentState } else { Operand::PastState }],
            present: at[Operand::PresentState],
            maps: call.scratch,
            ..SelectiveArgs::default()
        };
        let by_channel = call.by_channel.filter(|_| reads_quads(&args));
        for (kernel, flags, listed) in passes(by_channel.unwrap_or(call.kernels), parts) {
            let args =
                SelectiveArgs { flags: own | flags, parts: Parts::of(self.tokens(), parts, listed), ..args };
            let (items, threads) = (self.batch() * tiles * listed, kernel.1 as usize);
            let blocks = match (flags, by_channel) {
                (CARRY, _) => (self.batch() * self.channels() * map_of(lanes)).div_ceil(threads),
                (_, Some(_)) => (items * LANES).div_ceil(threads),
                (_, None) => items,
            };
            // SAFETY: *parameter*: the kernel takes a `SelectiveArgs`.
            unsafe { push(&mut list, kernel, blocks, &args)? };
        }
        Ok(list)
    }
}

/// Returns `true` if all tensors are f32, and those with state elements can be read four elements at a time.
fn reads_quads(args: &SelectiveArgs) -> bool {
    let f32 = |of: &SeriesTensor| of.dtype == dtype(DType::F32);
    let quads = |of: &SeriesTensor| {
        let DeviceTensor { data, batch, token, .. } = of.tensor;
        data % 16 == 0 && [batch, token].iter().all(|stride| stride % 4 == 0)
    };
    [&args.u, &args.delta, &args.z, &args.out, &args.b, &args.c].into_iter().all(f32)
        && [&args.b, &args.c].into_iter().all(quads)
        && [args.a, args.past, args.present].iter().all(|address| address % 16 == 0)
}
