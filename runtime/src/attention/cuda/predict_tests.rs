use super::*;
use elsa_core::attention::Spec;
use elsa_core::dtype::DType;
use elsa_core::profile::GpuProfile;
use elsa_core::view::{Layout, View};

/// The GPU of the table "On a GPU" of `runtime/benches/README.md`.
fn h200() -> GpuMachine {
    let var = |n: &str, d: f64| std::env::var(n).ok().and_then(|x| x.parse().ok()).unwrap_or(d);
    GpuMachine {
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
        launch_us: var("LAUNCH", 2.0),
        efficiency: var("EFF", 0.8),
    }
}

fn problem([batch, heads, queries, keys, d]: [usize; 5], dtype: DType, causal: bool) -> Problem {
    let view = |tokens| View::dense("x", Layout::Bhnd, &[batch, heads, tokens, d], None).unwrap();
    Spec { causal: causal.then_some(elsa_core::attention::Alignment::TopLeft), ..Spec::new(dtype, view(queries), view(keys), view(keys), view(queries)) }.check().unwrap()
}

#[test]
fn show() {
    for (b, h, n, d, causal, f16, us) in [
        (1, 8, 1024, 64, false, false, 60.5), (1, 8, 2048, 64, false, false, 214.7), (1, 8, 4096, 64, false, false, 808.5), (1, 8, 8192, 64, false, false, 3192.5), (1, 8, 16384, 64, false, false, 12827.7),
        (1, 1, 64, 64, false, false, 6.7), (1, 1, 100, 64, false, false, 11.4), (1, 1, 144, 64, false, false, 9.9), (1, 1, 196, 64, false, false, 9.9), (1, 1, 256, 64, false, false, 8.6), (1, 1, 576, 64, false, false, 12.7), (1, 1, 900, 64, false, false, 15.9),
        (1, 12, 196, 64, false, false, 17.1), (1, 12, 900, 64, false, false, 116.7), (8, 12, 197, 64, false, false, 63.3), (1, 16, 1041, 64, false, false, 209.8),
        (1, 8, 4096, 32, false, false, 445.3), (1, 8, 4096, 80, false, false, 1871.3), (1, 8, 4096, 96, false, false, 1465.7), (1, 8, 4096, 128, false, false, 1770.0), (1, 8, 4096, 256, false, false, 4289.0),
        (1, 8, 1024, 64, true, false, 54.2), (1, 8, 4096, 64, true, false, 655.2),
        (1, 8, 1024, 64, false, true, 67.0), (1, 8, 4096, 64, false, true, 895.4), (1, 8, 16384, 64, false, true, 13557.2),
        (1, 8, 1024, 32, false, false, 41.51), (4, 12, 256, 32, false, false, 19.66), (16, 12, 144, 32, false, false, 37.65), (16, 6, 64, 32, false, false, 6.78), (64, 3, 49, 32, false, false, 9.41),
    ] {
        let dtype = if f16 { DType::F16 } else { DType::F32 };
        let f = forecast(&problem([b, h, n, n, d], dtype, causal), &h200()).unwrap();
        let p = f.prediction;
        println!("ROW {b},{h},{n},{d} {} {} measured {us} predicted {:.1} ratio {:.2} {} splits {} blocks {} res {} waves {} att {:.1} merge {:?}", causal, f16, p.us(), p.us() / us, &f.kernel[10..30], f.splits, p.attention.blocks, p.attention.resident, p.attention.waves, p.attention.us, p.merge.map(|m| (m.blocks, m.us)));
    }
}
