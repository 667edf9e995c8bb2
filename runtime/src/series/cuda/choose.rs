//! Chooses how a GPU computes a per-channel operator. The chooser is a pure function of the problem, the options and
//! the number of SMs. Its criteria:
//!
//! 1. *Bits.* The bits of a recurrence and of a selective scan depend on the number of parts. So this number depends on
//!    the tokens, the channels and the device, but not on the number of sequences.
//! 2. *Warps.* Channels are independent, but tokens are not. A warp computes few channels, so a sequence with few
//!    channels leaves most of a device idle. Parts fill the device, but they double the work and add a step per part
//!    and two launches. So parts are used only if their estimated time, including these costs, is at most half the time
//!    of a single pass.
//! 3. *Lanes.* In a selective scan of 16 state elements, a lane can have a whole channel instead of a quarter. That takes half the
//!    instructions, but a quarter of the warps, so sequences with few channels do not use it.
//! 4. *Work.* A direct convolution takes one multiply-add per weight. Up to `MOST_TAPS` weights per token, a direct
//!    convolution on a GPU takes no longer than transforms on a CPU. Convolutions with more weights are left to the
//!    CPU.

use crate::error::PlanError;
use crate::series::options::{ConvolutionOptions, RecurrenceOptions, SelectiveOptions};
use elsa_core::plan::ChooseError;
use elsa_core::series::plan::MAX_PARTS;
use elsa_core::series::{convolution, recurrence, selective};
use elsa_kernels::cuda::series::{
    LANES, MOST_STATES, OUTPUTS, STATES_OF_LANE, TOKENS, TOKENS_OF_SELECTIVE, WARPS, channels_of, lanes_of,
    map_of,
};

/// Maximum number of filter weights per token on a GPU.
const MOST_TAPS: usize = 16_384;

/// Number of warps per SM that is enough to hide the latencies of the SM.
const WARPS_PER_SM: usize = 16;

/// Times of the steps of a computation in parts. The unit is the time to carry the state over the map of one part.
struct Times {
    /// Time to compute one tile of tokens.
    tile: usize,
    /// Time of the two additional launches that a computation in parts needs.
    launches: usize,
}

/// Times of a recurrence. On an H200, a tile takes about 1 µs and a map 0.06 µs.
const OF_RECURRENCE: Times = Times { tile: 16, launches: 64 };

/// Times of a selective scan. On an H200, a tile takes about 4 µs and a map 0.33 µs.
const OF_SELECTIVE: Times = Times { tile: 12, launches: 12 };

/// Times of a selective scan whose lanes have a whole channel. On an H200 with 16 warps per SM, a tile takes about 10 µs. A map takes
/// 0.03 µs, less than the least estimate, which makes no difference: parts beyond those that fill the device do not gain anything.
const OF_LANES: Times = Times { tile: 24, launches: 12 };

/// In several parts, a lane has a whole channel if this many times the warps of a part outnumber the SMs. With fewer warps, too many
/// parts would be needed. In one part, each SM needs [`WARPS`] warps.
const FEWEST_TILES: usize = 16;

/// A computation in parts is chosen only if a single pass takes at least this many times as long. Both times are
/// estimates. The number is above one because parts read the inputs twice.
const LEAST_GAIN: usize = 2;

/// Maximum number of parts that the chooser selects.
const MOST_PARTS: usize = 256;

/// Largest number that the kernels' integers represent.
const MOST: usize = i32::MAX as usize;

/// The chooser's decisions for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesGpuChoice {
    /// Number of parts into which the tokens are divided; one for a single pass.
    pub parts: usize,
    /// Number of tiles into which the channels of a sequence are divided.
    pub tiles: usize,
    /// Size in bytes of the device memory that a run needs in addition to its tensors.
    pub bytes: usize,
    /// `true` if the layouts permit a kernel in which a lane has a whole channel.
    pub by_channel: bool,
}

/// Returns an error if `found` exceeds `most`. The error message calls this number `what`.
fn fits(what: &'static str, found: usize, most: usize) -> Result<(), PlanError> {
    if found > most { Err(ChooseError::Large { what, found, most }.into()) } else { Ok(()) }
}

/// Multiplies counts; an overflow yields `usize::MAX`.
fn product(counts: &[usize]) -> usize {
    counts.iter().fold(1, |n: usize, count| n.saturating_mul(*count))
}

/// Returns the number of parts with the least estimated time, for a sequence of `tokens` tokens. `warps` warps compute
/// the sequence in tiles of `of_tile` tokens. The device folds and computes parts concurrently if it has room for their
/// warps. It carries the state over the maps of the parts one after another. Returns one if parts gain too little.
fn parts(tokens: usize, of_tile: usize, warps: usize, sms: usize, times: &Times) -> usize {
    let (tiles, room) = (tokens.div_ceil(of_tile), (WARPS_PER_SM * sms).max(1));
    let pass = |each: usize, parts: usize| {
        product(&[each, times.tile, warps.saturating_mul(parts).div_ceil(room).max(1)])
    };
    let time = |parts: usize| {
        let both = pass(tiles.div_ceil(parts), parts).saturating_mul(2);
        both.saturating_add(parts).saturating_add(times.launches)
    };
    let best = (2..=tiles.min(MOST_PARTS)).min_by_key(|parts| time(*parts));
    best.filter(|parts| time(*parts).saturating_mul(LEAST_GAIN) <= pass(tiles, 1)).unwrap_or(1)
}

/// Returns the decisions for `parts` parts, with the memory that these parts need. `values` is the number of values in
/// the factors of one part's map, in all channels and sequences. If the memory exceeds the budget, there are two cases:
/// if the options request the parts, returns an error; otherwise returns the decisions for a single pass.
fn with_maps(
    tiles: usize,
    parts: usize,
    values: usize,
    asked: bool,
    budget: Option<usize>,
) -> Result<SeriesGpuChoice, PlanError> {
    let needed = if parts > 1 { product(&[2, parts, values, size_of::<f32>()]) } else { 0 };
    match budget {
        Some(budget) if needed > budget => match asked {
            true => Err(ChooseError::Budget { needed, budget }.into()),
            false => Ok(SeriesGpuChoice { parts: 1, tiles, bytes: 0, by_channel: false }),
        },
        _ if needed > isize::MAX as usize => Err(ChooseError::Memory { needed }.into()),
        _ => Ok(SeriesGpuChoice { parts, tiles, bytes: needed, by_channel: false }),
    }
}

/// Returns the requested number of parts, limited to the number of tokens; `None` if the options request no number.
fn asked(parts: Option<usize>, tokens: usize) -> Result<Option<usize>, PlanError> {
    match parts {
        Some(found) if !(1..=MAX_PARTS).contains(&found) => {
            Err(ChooseError::Parts { found, min: 1, max: MAX_PARTS }.into())
        }
        _ => Ok(parts.map(|parts| parts.min(tokens.max(1)))),
    }
}

/// Chooses how a recurrence is computed.
///
/// # Errors
/// Returns an error if the number of parts is outside its allowed range, if a size exceeds the kernel's limits, or if
/// the workspace exceeds the budget.
pub fn choose_recurrence(
    problem: &recurrence::Problem,
    sms: usize,
    options: &RecurrenceOptions,
) -> Result<SeriesGpuChoice, PlanError> {
    let (tokens, channels) = (problem.tokens(), problem.channels());
    let tiles = channels.div_ceil(LANES);
    let asked = asked(options.parts, tokens)?;
    let parts = asked.unwrap_or(parts(tokens, TOKENS, tiles, sms, &OF_RECURRENCE));
    fits("tokens", tokens, MOST / 2)?;
    fits("channels", channels, MOST / 2)?;
    fits("blocks", product(&[problem.batch(), parts, tiles]), MOST)?;
    with_maps(tiles, parts, problem.states(), asked.is_some(), options.budget)
}

/// Returns `true` if the channels of a token, and its coefficients, are adjacent in every tensor.
fn has_adjacent_channels(problem: &selective::Problem) -> bool {
    let s = problem.spec();
    let coefficient = |of: &selective::Coefficient| match of {
        selective::Coefficient::Token(of) => Some(*of),
        selective::Coefficient::Channel => None,
    };
    let all = [
        Some(s.u),
        Some(s.delta),
        Some(s.z.unwrap_or(s.u)),
        Some(s.out),
        coefficient(&s.b),
        coefficient(&s.c),
    ];
    all.iter().all(|of| of.is_some_and(|of| of.channel_stride() == Some(1)))
}

/// Chooses how a selective scan is computed.
///
/// # Errors
/// Returns an error if the number of parts is outside its allowed range, if a size exceeds the kernel's limits, or if
/// the workspace exceeds the budget.
pub fn choose_selective(
    problem: &selective::Problem,
    sms: usize,
    options: &SelectiveOptions,
) -> Result<SeriesGpuChoice, PlanError> {
    let (tokens, channels, states) = (problem.tokens(), problem.channels(), problem.states());
    fits("states", states, MOST_STATES)?;
    let group = problem.tile_group().clamp(1, channels.max(1));
    let lanes = lanes_of(states);
    let tiles = channels.div_ceil(group).saturating_mul(group.div_ceil(channels_of(lanes)));
    let asked = asked(options.gpu_parts, tokens)?;
    let estimated = |warps, times| parts(tokens, TOKENS_OF_SELECTIVE, warps, sms, times);
    let by_lanes = asked.unwrap_or(estimated(tiles, &OF_LANES));
    let enough = if by_lanes > 1 { tiles.saturating_mul(FEWEST_TILES) > sms } else { tiles >= WARPS * sms };
    let by_channel = enough && states == STATES_OF_LANE && has_adjacent_channels(problem);
    let by_warps = asked.unwrap_or(estimated(tiles.saturating_mul(WARPS), &OF_SELECTIVE));
    let parts = if by_channel { by_lanes } else { by_warps };
    fits("tokens", tokens, MOST / 2)?;
    fits("channels", product(&[channels, map_of(lanes)]), MOST / 2)?;
    fits("blocks", product(&[problem.batch(), parts, tiles]), MOST)?;
    let values = product(&[problem.batch(), channels, map_of(lanes)]);
    let choice = with_maps(tiles, parts, values, asked.is_some(), options.budget)?;
    Ok(SeriesGpuChoice { by_channel, ..choice })
}

/// Chooses how a convolution is computed. A GPU only supports the direct method.
///
/// # Errors
/// Returns an error if a size exceeds the kernel's limits, or if the options request no method and transforms on the
/// CPU would be faster.
pub fn choose_convolution(
    problem: &convolution::Problem,
    options: &ConvolutionOptions,
) -> Result<SeriesGpuChoice, PlanError> {
    let (tokens, taps) = (problem.tokens(), problem.taps());
    if options.method.is_none() {
        fits("taps for each token", taps.min(tokens), MOST_TAPS)?;
    }
    let tiles = problem.channels().div_ceil(LANES);
    fits("tokens", tokens, MOST / 2)?;
    fits("taps", taps, MOST / 2)?;
    fits("channels", product(&[problem.batch(), problem.channels()]), MOST / 2)?;
    fits("blocks", product(&[problem.batch(), tokens.div_ceil(OUTPUTS), tiles]), MOST)?;
    Ok(SeriesGpuChoice { parts: 1, tiles, bytes: 0, by_channel: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::series::Series;
    use elsa_core::series::convolution::Method;

    #[test]
    fn parts_fill_a_device_and_do_not_follow_the_batch() {
        let choice = |sms, batch, tokens, channels, budget| {
            let series = Series::tokens_first("b", [batch, tokens, channels]).unwrap();
            let problem = recurrence::Spec::new(series, series, series).check().unwrap();
            let options = RecurrenceOptions { budget, ..RecurrenceOptions::default() };
            choose_recurrence(&problem, sms, &options).unwrap()
        };
        for (sms, tokens, channels, parts) in [
            (132, 0, 64, 1),
            (132, 128, 64, 1),
            (132, 256, 64, 16),
            (132, 1024, 64, 32),
            (132, 65_536, 64, 256),
            (132, 65_536, 1024, 66),
            (2, 256, 64, 16),
            (2, 1024, 64, 16),
            (2, 100_000, 128, 8),
            // Parts would let four times as many warps run at once. But this does not outweigh the doubled work and the
            // additional launches.
            (2, 100_000, 256, 1),
            (2, 100_000, 512, 1),
        ] {
            for batch in [1, 3] {
                let found = choice(sms, batch, tokens, channels, None).parts;
                assert_eq!(found, parts, "{sms} SMs, {tokens} tokens, {channels} channels");
            }
        }
        assert_eq!(choice(132, 3, 256, 64, None).bytes, 2 * 16 * 3 * 64 * 4);
        assert_eq!(
            choice(132, 3, 256, 64, Some(100)),
            SeriesGpuChoice { parts: 1, tiles: 2, bytes: 0, by_channel: false }
        );
    }

    #[test]
    fn parts_of_selective_scans_fill_a_device() {
        let choice = |sms, batch, tokens, channels, states| {
            let series = |width| Series::tokens_first("u", [batch, tokens, width]).unwrap();
            let u = series(channels);
            let of_token = selective::Coefficient::Token(series(states));
            let spec = selective::Spec::new(u, u, states, of_token, of_token, u);
            choose_selective(&spec.check().unwrap(), sms, &SelectiveOptions::default()).unwrap().parts
        };
        for (sms, tokens, channels, states, parts) in [
            (132, 32, 1024, 16, 1),
            (132, 64, 1024, 16, 1),
            (132, 128, 1024, 16, 8),
            (132, 1024, 1024, 16, 64),
            (132, 16384, 1024, 16, 64),
            (132, 1024, 64, 16, 32),
            (132, 1024, 1024, 1, 16),
            (132, 1024, 1024, 128, 1),
            (2, 1024, 64, 16, 16),
            (2, 1024, 32, 4, 8),
            (2, 1024, 1024, 16, 1),
        ] {
            for batch in [1, 3] {
                let found = choice(sms, batch, tokens, channels, states);
                assert_eq!(found, parts, "{sms} SMs, {tokens} tokens, {channels} channels, {states} states");
            }
        }
    }

    #[test]
    fn a_lane_has_a_channel_if_channels_are_many_and_adjacent() {
        let choice = |sms, tokens, channels, states, adjacent: bool| {
            let series = |width| match adjacent {
                true => Series::tokens_first("u", [1, tokens, width]).unwrap(),
                false => Series::channels_first("u", [1, width, tokens]).unwrap(),
            };
            let u = series(channels);
            let of_token = selective::Coefficient::Token(series(states));
            let spec = selective::Spec::new(u, u, states, of_token, of_token, u);
            let choice = choose_selective(&spec.check().unwrap(), sms, &SelectiveOptions::default()).unwrap();
            (choice.by_channel, choice.parts)
        };
        assert_eq!(choice(132, 16_384, 1024, 16, true), (true, 64));
        assert_eq!(choice(132, 16_384, 512, 16, true), (true, 128));
        assert!(!choice(132, 16_384, 256, 16, true).0);
        assert_eq!(choice(2, 16_384, 1024, 16, true), (true, 1));
        assert_eq!(choice(132, 16_384, 1024, 15, true), (false, 16));
        assert_eq!(choice(132, 16_384, 1024, 16, false), (false, 16));
    }

    #[test]
    fn counts_beyond_a_kernel_are_refused() {
        let conv = |tokens, taps, method| {
            let series = Series::tokens_first("u", [1, tokens, 8]).unwrap();
            let problem = convolution::Spec::new(series, taps, series).check().unwrap();
            choose_convolution(&problem, &ConvolutionOptions { method, ..ConvolutionOptions::default() })
        };
        let refused = conv(20_000, 16_385, None).unwrap_err().to_string();
        assert_eq!(refused, "taps for each token: 16385; allowed on a GPU: at most 16384");
        assert!(conv(20_000, 16_385, Some(Method::Direct)).is_ok() && conv(1, 16_385, None).is_ok());
        let series = Series::tokens_first("b", [1, 1 << 31, 1]).unwrap();
        let problem = recurrence::Spec::new(series, series, series).check().unwrap();
        let refused = choose_recurrence(&problem, 2, &RecurrenceOptions::default());
        assert!(refused.unwrap_err().to_string().starts_with("tokens: 2147483648; allowed on a GPU"));
    }
}
