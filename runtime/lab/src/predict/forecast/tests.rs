use super::*;
use elsa_core::attention::plan::alternatives;
use elsa_core::attention::{Alignment, Spec};
use elsa_core::dtype::DType;
use elsa_core::profile::GpuProfile;
use elsa_core::view::{Layout, View};

/// The GPU of the tables in `docs/src/machines/h200-2026-11-26.md`, from its data sheet. `efficiency` corrects for the
/// difference between the code for compute capability 9.0 and the code for 6.2. It was fitted to the rows `1,8,4096,64`
/// to `1,8,16384,64`. `launch_us` was fitted to the row `1,1,64,64`. All other rows test these two values.
pub const H200: GpuMachine = GpuMachine {
    profile: GpuProfile {
        capability: (9, 0),
        sms: 132,
        lanes_per_sm: 128,
        shared_memory: 232_448,
        shared_per_sm: 233_472,
        l2: 50 << 20,
        mhz: 1980,
        integrated: false,
    },
    bandwidth_gbs: 4800.0,
    launch_us: 2.0,
    efficiency: 0.8,
};

/// The board of table 6 of the paper.
pub const TX2: GpuMachine = GpuMachine {
    profile: GpuProfile {
        capability: (6, 2),
        sms: 2,
        lanes_per_sm: 128,
        shared_memory: 48 << 10,
        shared_per_sm: 64 << 10,
        l2: 512 << 10,
        mhz: 1300,
        integrated: true,
    },
    bandwidth_gbs: 59.7,
    launch_us: 10.0,
    efficiency: 0.9,
};

/// Returns the spec of a problem with the given shape `[batch, heads, tokens, d]`.
fn spec([batch, heads, tokens, d]: [usize; 4], dtype: DType) -> Spec {
    let view = View::dense("x", Layout::Bhnd, &[batch, heads, tokens, d], None).unwrap();
    Spec::new(dtype, view, view, view, view)
}

fn us(shape: [usize; 4], machine: &GpuMachine) -> f64 {
    forecast(&spec(shape, DType::F32).check().unwrap(), machine, false).unwrap().prediction.us()
}

#[test]
fn recorded_latencies_of_another_gpu_are_predicted() {
    let (plain, causal, half) = ((false, DType::F32), (true, DType::F32), (false, DType::F16));
    // Medians from the tables in the page of the H200. Rows for decoding are excluded, because their blocks share keys
    // and wait for memory, which instruction counts do not show. Rows with masks are excluded, because `forecast`
    // refuses calls with masks.
    let recorded = [
        ([1, 8, 1024, 64], plain, 59.9),
        ([1, 8, 2048, 64], plain, 210.7),
        ([1, 8, 4096, 64], plain, 790.9),
        ([1, 8, 8192, 64], plain, 3104.8),
        ([1, 8, 16384, 64], plain, 12428.5),
        ([1, 1, 64, 64], plain, 4.6),
        ([1, 1, 100, 64], plain, 6.0),
        ([1, 1, 144, 64], plain, 6.5),
        ([1, 1, 196, 64], plain, 9.5),
        ([1, 1, 256, 64], plain, 9.7),
        ([1, 1, 576, 64], plain, 12.4),
        ([1, 1, 900, 64], plain, 16.2),
        ([1, 12, 196, 64], plain, 16.3),
        ([1, 12, 900, 64], plain, 90.0),
        ([8, 12, 197, 64], plain, 46.4),
        ([1, 16, 1041, 64], plain, 142.5),
        ([1, 8, 4096, 32], plain, 431.4),
        ([1, 8, 4096, 80], plain, 1245.7),
        ([1, 8, 4096, 96], plain, 1340.5),
        ([1, 8, 4096, 128], plain, 1758.7),
        ([1, 8, 4096, 256], plain, 4049.5),
        ([1, 8, 1024, 64], causal, 54.1),
        ([1, 8, 4096, 64], causal, 460.3),
        ([1, 8, 1024, 64], half, 66.1),
        ([1, 8, 4096, 64], half, 882.6),
        ([1, 8, 16384, 64], half, 13266.4),
        ([64, 3, 49, 32], plain, 9.41),
        ([16, 6, 64, 32], plain, 6.78),
        ([16, 12, 144, 32], plain, 37.65),
        ([1, 8, 1024, 32], plain, 41.51),
        ([4, 12, 256, 32], plain, 19.66),
    ];
    for (shape, (causal, dtype), measured) in recorded {
        let causal = causal.then_some(Alignment::TopLeft);
        let problem = spec(shape, dtype).causal(causal).check().unwrap();
        let found = forecast(&problem, &H200, false).unwrap();
        let predicted = found.prediction.us();
        let apart = (predicted / measured - 1.0).abs();
        // In the kernel for four rows, the waits for memory overlap; the model adds them up.
        let most = if found.kernel.contains("_q4k") { 0.75 } else { 0.25 };
        assert!(apart <= most, "{shape:?} {dtype:?} {causal:?}: {predicted:.1} us; measured: {measured}");
    }
}

#[test]
fn no_other_division_is_predicted_to_be_much_faster_on_a_board() {
    let nano =
        GpuMachine { profile: GpuProfile { sms: 1, capability: (5, 3), mhz: 921, ..TX2.profile }, ..TX2 };
    let nano = GpuMachine { bandwidth_gbs: 25.6, ..nano };
    let options = GpuOptions::default();
    let (mut compared, mut worst) = (0, 0.0f64);
    let lengths = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900, 2048];
    let shapes = [1, 3, 12].into_iter().flat_map(|heads| lengths.map(|n| [1, heads, n, 64]));
    for shape in shapes.chain([[1, 12, 900, 32], [1, 1, 576, 32], [8, 12, 197, 64], [1, 12, 577, 96]]) {
        let problem = spec(shape, DType::F32).check().unwrap();
        for machine in [TX2, nano] {
            let kernels = || GPU_KERNELS.iter().filter_map(GpuKernel::attention);
            let choices = alternatives(&problem, &machine.profile, kernels(), &options).unwrap();
            let us =
                |choice: &GpuChoice| of_choice(&problem, &machine, choice).map(|found| found.prediction.us());
            let times: Vec<f64> = choices.filter_map(|choice| us(&choice).ok()).collect();
            let best = times.iter().copied().fold(f64::INFINITY, f64::min);
            compared += times.len() - 1;
            worst = worst.max(times[0] / best);
            assert!(
                times[0] <= 1.1 * best,
                "{shape:?} {} SMs: {:.1} us; another: {best:.1}",
                machine.profile.sms,
                times[0]
            );
        }
    }
    println!("{compared} other divisions, the best of them {worst:.3} times as fast as the choice");
    assert!(compared > 200, "{compared}");
}

#[test]
fn longer_problems_take_longer_and_better_machines_do_not() {
    for machine in [TX2, H200] {
        let times: Vec<f64> = (6..15).map(|log| us([1, 4, 1 << log, 64], &machine)).collect();
        // Two of the short problems are divided into splits of equal size, so their times may be equal.
        assert!(times.is_sorted() && times[2..].is_sorted_by(|a, b| a < b), "{times:?}");
        // For long problems, four times as many pairs take about four times as long.
        let ratio = times[8] / times[7];
        assert!((3.6..4.4).contains(&ratio), "{ratio}");
    }
    for tokens in [256, 900, 4096] {
        let of = |sms, mhz, bandwidth_gbs, launch_us, efficiency| {
            let profile = GpuProfile { sms, mhz, ..TX2.profile };
            us([1, 8, tokens, 64], &GpuMachine { profile, bandwidth_gbs, launch_us, efficiency })
        };
        let here = of(2, 1300, 59.7, 10.0, 0.9);
        assert!(of(1, 1300, 59.7, 10.0, 0.9) > 1.5 * here, "{tokens}");
        assert!(of(4, 1300, 59.7, 10.0, 0.9) < here && of(8, 1300, 59.7, 10.0, 0.9) < here, "{tokens}");
        assert!(of(2, 850, 59.7, 10.0, 0.9) > here && of(2, 1300, 59.7, 10.0, 0.8) > here, "{tokens}");
        assert!(
            of(2, 1300, 59.7, 20.0, 0.9) >= here + 10.0 && of(2, 1300, 0.1, 10.0, 0.9) > here,
            "{tokens}"
        );
    }
}

#[test]
fn no_prediction_beats_the_multiply_adds() {
    for [batch, heads, tokens, d] in [[1, 1, 900, 64], [1, 8, 4096, 128], [2, 3, 1000, 32], [1, 2, 2048, 256]]
    {
        let fma = (2 * batch * heads * tokens * tokens * d) as f64;
        for (machine, lanes) in [(TX2, 256.0), (H200, 16_896.0)] {
            let least = fma / lanes / f64::from(machine.profile.mhz);
            let found = us([batch, heads, tokens, d], &machine);
            assert!(found > least, "{found} us; {least} at the peak");
        }
    }
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let problem = |spec: Spec| spec.check().unwrap();
    let plain = problem(spec([1, 2, 100, 64], DType::F32));
    let old = GpuMachine { profile: GpuProfile { capability: (5, 2), ..TX2.profile }, ..TX2 };
    assert_eq!(forecast(&plain, &old, false), Err(ForecastError::Capability { found: (5, 2) }));
    let without = [
        GpuMachine { profile: GpuProfile { sms: 0, ..TX2.profile }, ..TX2 },
        GpuMachine { profile: GpuProfile { mhz: 0, ..TX2.profile }, ..TX2 },
        GpuMachine { bandwidth_gbs: 0.0, ..TX2 },
        GpuMachine { efficiency: f64::NAN, ..TX2 },
        GpuMachine { launch_us: f64::NAN, ..TX2 },
    ];
    for machine in without {
        assert!(
            matches!(forecast(&plain, &machine, false), Err(ForecastError::Unknown { .. })),
            "{machine:?}"
        );
    }
    let capped = problem(spec([1, 2, 100, 64], DType::F32).softcap(20.0));
    assert_eq!(forecast(&capped, &TX2, false), Err(ForecastError::Changed { found: "softcap" }));
    let wide = problem(spec([1, 2, 100, 512], DType::F32));
    assert!(matches!(forecast(&wide, &TX2, false), Err(ForecastError::Choose(ChooseError::HeadSize { .. }))));
    // A call without tokens takes at least the time of its launch.
    assert!(us([1, 1, 0, 64], &TX2) >= TX2.launch_us);
}

#[test]
fn every_kernel_that_a_plain_problem_uses_has_costs() {
    let ends = ["_added", "_within"];
    let without = |name: &str| {
        ends.iter().any(|end| name.ends_with(end))
            || name.starts_with("linear_")
            || name.starts_with("series_")
            // Boards whose times are predicted cannot load the kernels for Tensor Cores.
            || name.contains("__sm80")
    };
    let predicted = |kernel: &&GpuKernel| !without(kernel.name);
    for kernel in GPU_KERNELS.iter().filter(predicted) {
        let found: Vec<_> = COSTS.iter().filter(|(name, _)| *name == kernel.name).collect();
        let [(_, cost)] = found[..] else { panic!("{}: {} costs", kernel.name, found.len()) };
        let Some(spec) = kernel.attention() else { continue };
        assert!(cost.keys > 0 && cost.plain.fma > 0 && cost.edge.fma > 0, "{}", kernel.name);
        let part = cost.plain;
        assert!(part.instructions > part.fma + part.floats + part.integers + part.xmad, "{}", kernel.name);
        assert!(part.alone >= part.stalls && part.stalls > part.instructions - part.pairs, "{}", kernel.name);
        if spec.rows > 8 {
            let fma = 2 * spec.rows * 64 * spec.head_dim / spec.resources.threads;
            let saved = if spec.half_scores() { fma / 4 } else { 0 };
            assert!(part.fma as usize >= fma - saved, "{}", kernel.name);
        }
    }
}

#[test]
fn sums_in_f16_save_what_products_of_scores_leave() {
    let of = |dtype, half, tokens| {
        forecast(&spec([1, 8, tokens, 64], dtype).check().unwrap(), &TX2, half).unwrap()
    };
    for tokens in [1024, 4096] {
        let [halves, widened, single] = [(DType::F16, true), (DType::F16, false), (DType::F32, false)]
            .map(|(dtype, half)| of(dtype, half, tokens));
        assert!(halves.kernel.contains("half2") && !widened.kernel.contains("half2"), "{}", halves.kernel);
        // A tile of 64 rows, 64 keys and 64 dims requires 2,048 multiply-adds per lane for the scores, and 2,048 per
        // lane for the values. Pairs of f16 halve the count for the scores. They do not change the count for the
        // values, because values are summed in f32.
        assert_eq!((widened.tile.fma, halves.tile.fma - 2048 - 1024), (4096, 256), "{tokens}");
        let ratio = single.prediction.us() / halves.prediction.us();
        println!("1,8,{tokens},64: f32 takes {ratio:.3} times as long as f16 with sums in f16");
        assert!(ratio < 4096.0 / (1024.0 + 2048.0), "{ratio}");
        // Widening the sums costs as much as the pairs save.
        let issued = |x: &Forecast| x.tile.instructions - x.tile.pairs + x.tile.conflicts;
        assert!(issued(&halves) < issued(&widened) && ratio > 0.85, "{ratio}");
    }
}
