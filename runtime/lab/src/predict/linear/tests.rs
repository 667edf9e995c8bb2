use super::super::forecast::tests::{H200, TX2};
use super::*;
use elsa_core::linear::Form::{Chunk, FusedChunk, Recurrent};

fn predicted(
    rule: &'static str,
    heads: usize,
    dim: usize,
    tokens: usize,
    machine: &GpuMachine,
) -> Prediction {
    Call { rule, heads, tokens, dim }.predict(machine).unwrap()
}

#[test]
fn recorded_latencies_of_another_gpu_are_predicted() {
    // Microseconds from "The choice for one stream" in the page of the H200: `fused-chunk` and `chunk` with 2,048 and with 16,384
    // tokens of 8 heads. Where threads of a block wait for one another often, the prediction is too low.
    let near = [0.8, 1.05];
    let recorded = [
        ("linear", 64, [188.0, 31.3], [1544.0, 196.0], [near, near]),
        ("linear", 128, [152.0, 71.3], [1179.0, 565.0], [near, near]),
        ("gated", 64, [188.0, 32.4], [1545.0, 206.0], [near, [0.78, 1.05]]),
        ("gated", 128, [151.0, 73.3], [1177.0, 578.0], [near, near]),
        ("gated-dim", 64, [262.0, 51.2], [2404.0, 381.0], [[0.6, 0.75], near]),
        ("gated-dim", 128, [519.0, 124.0], [3877.0, 938.0], [[0.5, 0.6], [0.75, 0.8]]),
        ("delta", 64, [240.0, 74.5], [1889.0, 556.0], [near, [0.6, 0.7]]),
        ("delta", 128, [197.0, 215.0], [1534.0, 1630.0], [near, [0.5, 0.6]]),
    ];
    for (rule, dim, few, many, ranges) in recorded {
        for (tokens, measured) in [(2_048, few), (16_384, many)] {
            let found = predicted(rule, 8, dim, tokens, &H200);
            for ((us, form), [least, most]) in measured.into_iter().zip([FusedChunk, Chunk]).zip(ranges) {
                let ratio = found.of(form) * 1e3 / us;
                let what = format!("{rule}, d {dim}, {tokens} tokens, {form:?}: {ratio:.2} of {us} us");
                assert!((least..=most).contains(&ratio), "{what}");
                println!("{what}");
            }
        }
    }
}

#[test]
fn the_plan_chooses_the_form() {
    for rule in RULES {
        for dim in DIMS {
            // One sequence of 8 heads leaves most SMs of an H200 idle, and fills those of a TX2.
            let at = |machine| predicted(rule, 8, dim, 2_048, machine);
            let chunk = if (rule, dim) == ("delta", 128) { FusedChunk } else { Chunk };
            assert_eq!([at(&H200).chosen, at(&H200).in_order], [chunk, FusedChunk], "{rule} {dim}");
            assert_eq!([at(&TX2).chosen, at(&TX2).in_order], [FusedChunk; 2], "{rule} {dim}");
            let short = predicted(rule, 1, dim, 16, &H200);
            assert_eq!([short.chosen, short.in_order], [Recurrent; 2], "{rule} {dim}");
        }
    }
}

#[test]
fn a_chunk_has_the_multiply_adds_of_its_products() {
    let walks = |kernel: &str| kernel.contains("walk_head") || kernel.contains("pairs_head");
    for cost in COSTS.iter().filter(|cost| walks(cost.kernel) && !cost.steps) {
        // A thread has a share of the products of queries with the state, and of keys with values.
        let threads = 128;
        let columns = if cost.kernel.contains("pairs") { 16 } else { 32 };
        let least = 2 * CHUNK * cost.dim * columns / threads;
        let fma = cost.chunk.part.fma as usize;
        assert!((least..2 * least).contains(&fma), "{} {}: {fma} of {least}", cost.kernel, cost.rule);
    }
    // The weights of a long chunk's pairs, and the products with the state and with the values.
    for (kernel, threads) in [("linear_long_answers__sm53", 128), ("linear_long_answers_few__sm53", 256)] {
        let cost =
            COSTS.iter().find(|cost| (cost.kernel, cost.rule, cost.dim) == (kernel, "linear", 64)).unwrap();
        let whole = LONG_CHUNK * 64 * 64 / threads;
        let fma = cost.block.part.fma as usize;
        assert!((whole + whole / 2..=2 * whole).contains(&fma), "{kernel}: {fma} of {whole}");
    }
    // Sums of logarithms per dim are integers: the units for f64 of a board would take longer than all other instructions.
    assert!(
        COSTS.iter().filter(|cost| cost.rule == "gated-dim" && !cost.steps).all(|cost| cost.block.f64s == 0)
    );
    assert!(COSTS.iter().any(|cost| cost.kernel.contains("prepare_head") && cost.block.f64s > 0));
}

#[test]
fn longer_sequences_take_longer_and_units_for_f64_are_counted() {
    for rule in RULES {
        for form in 0..FORMS.len() {
            let ms = TOKENS.map(|tokens| predicted(rule, 8, 64, tokens, &TX2).ms[form]);
            assert!(ms[0] < ms[1] && ms[1] < ms[2], "{rule} {form}: {ms:?}");
        }
    }
    // The Jetson's rate of f64 is 1/32 of that of f32, that of a GPU of capability 6.0 a half.
    let mut fast = TX2;
    fast.profile.capability = (6, 0);
    let of = |machine, rule| predicted(rule, 8, 64, 16_384, machine).of(FusedChunk);
    assert!(of(&TX2, "gated") > 1.05 * of(&fast, "gated"));
    assert_eq!(of(&TX2, "gated-dim"), of(&fast, "gated-dim"));
}

#[test]
fn what_is_not_known_is_refused() {
    let call = Call { rule: "linear", heads: 8, tokens: 256, dim: 64 };
    let unknown = GpuMachine { bandwidth_gbs: 0.0, ..TX2 };
    assert!(matches!(call.predict(&unknown), Err(ForecastError::Unknown { fact: "memory bandwidth" })));
    for wrong in [Call { dim: 32, ..call }, Call { rule: "gated-delta", ..call }] {
        assert!(matches!(wrong.predict(&TX2), Err(ForecastError::Cost { .. })), "{wrong:?}");
    }
}
