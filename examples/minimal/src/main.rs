//! Attention over a padded batch, from slices to an answer: engine, plan, bind, run.

#![forbid(unsafe_code)]

use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::attention::{MaskElements, MaskKind, MaskView};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, EngineOptions, PlanOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (batch, heads, tokens, dim) = (2, 12, 197, 64);
    let view = View::dense("q", Layout::Bhnd, &[batch, heads, tokens, dim], None)?;
    let wave = |rate: f32| (0..view.count()).map(|i| (i as f32 * rate).sin()).collect::<Vec<f32>>();
    let (q, k, v) = (wave(0.37), wave(0.61), wave(0.89));

    // The second sequence has 150 tokens; the mask is broadcast over heads and queries.
    let mask: Vec<u8> =
        (0..batch * tokens).map(|i| u8::from(i % tokens < [tokens, 150][i / tokens])).collect();
    let mut spec = Spec::new(DType::F32, view, view, view, view);
    spec.mask = Some(MaskView::dense(MaskKind::Bool, &[batch, 1, 1, tokens])?);
    let problem = spec.check()?;

    // Once per shape.
    let engine = Engine::new(&EngineOptions::default())?;
    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let mut workspace = plan.workspace()?;

    // Once per frame; run allocates nothing.
    let mut y = vec![0.0; view.count()];
    let mut lse = vec![0.0; problem.rows()];
    let mut inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
    inputs.mask = Some(MaskElements::Bool(&mask));
    let mut outputs = Outputs::new(ElementsMut::F32(&mut y));
    outputs.lse = Some(&mut lse);
    let report = plan.bind(inputs, outputs, &mut workspace)?.run()?;

    println!(
        "{} on {} worker(s), {} bytes of workspace",
        plan.kernel(),
        report.workers,
        plan.workspace_bytes()
    );
    println!("first output row starts {:?}, its log-sum-exp is {}", &y[..4], lse[0]);
    Ok(())
}
