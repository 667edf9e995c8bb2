//! Scratch.
#![allow(warnings)]
use elsa_core::attention::{Inputs, Lengths, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, EngineOptions, PlanOptions};
use std::time::Instant;
fn main() {
    let engine = Engine::new(&EngineOptions { threads: Some(2), ..Default::default() }).unwrap();
    for dtype in [DType::F32, DType::F16] {
        for queries in [1usize, 16] {
            for valid in [16usize, 128, 512, 2048] {
                let mut t = [0.0f64; 2];
                let mut w = [0; 2];
                let mut runs = [0.0f64; 2];
                let mut once = |cap: usize, slot: usize| {
                    let view = |n| View::dense("x", Layout::Bhnd, &[8, n, 64], None).unwrap();
                    let (q, k) = (view(queries), view(cap));
                    let spec = Spec {
                        key_lengths: cap != valid || valid == 2048 && slot == 0,
                        ..Spec::new(dtype, q, k, k, q)
                    };
                    let problem = spec.check().unwrap();
                    let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
                    let (a, b, c) = (wave(q.count()), wave(k.count()), wave(k.count()));
                    let h = |x: &Vec<f32>| x.iter().map(|v| half::f16::from_f32(*v)).collect::<Vec<_>>();
                    let (ah, bh, ch) = (h(&a), h(&b), h(&c));
                    let mut y = vec![0.0f32; q.count()];
                    let mut yh = h(&y);
                    let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
                    let mut ws = plan.workspace().unwrap();
                    let lens = [valid as i64];
                    let mut best = f64::MAX;
                    let mut bestrun = f64::MAX;
                    for _ in 0..30 {
                        let n = 50;
                        let s = Instant::now();
                        let mut inrun = 0.0;
                        for _ in 0..n {
                            let mut i = if dtype == DType::F32 {
                                Inputs::new(Elements::F32(&a), Elements::F32(&b), Elements::F32(&c))
                            } else {
                                Inputs::new(Elements::F16(&ah), Elements::F16(&bh), Elements::F16(&ch))
                            };
                            if spec.key_lengths {
                                i.lengths = Lengths { keys: Some(&lens), ..Default::default() };
                            }
                            let o = if dtype == DType::F32 {
                                ElementsMut::F32(&mut y)
                            } else {
                                ElementsMut::F16(&mut yh)
                            };
                            let mut bound = plan.bind(i, Outputs::new(o), &mut ws).unwrap();
                            let s2 = Instant::now();
                            let r = bound.run().unwrap();
                            inrun += s2.elapsed().as_secs_f64();
                            w[slot] = r.workers;
                        }
                        best = best.min(s.elapsed().as_secs_f64() / n as f64);
                        bestrun = bestrun.min(inrun / n as f64);
                    }
                    t[slot] = best;
                    runs[slot] = bestrun;
                };
                once(2048, 0);
                once(valid, 1);
                println!(
                    "{dtype:?} q {queries} valid {valid}: fixed {:.2} us (run {:.2}, {} workers), exact {:.2} us (run {:.2}, {} workers), ratio {:.2}",
                    t[0] * 1e6,
                    runs[0] * 1e6,
                    w[0],
                    t[1] * 1e6,
                    runs[1] * 1e6,
                    w[1],
                    t[0] / t[1]
                );
            }
        }
    }
}
