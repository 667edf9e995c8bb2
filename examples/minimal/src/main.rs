//! Attention over a padded batch, from slices to the output: engine, plan, bind, run.

#![forbid(unsafe_code)]

use elsa_edge::attention::{Inputs, MaskElements, MaskKind, MaskView, Outputs, PlanOptions, Spec};
use elsa_edge::{DType, Engine, EngineOptions, View};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (batch, heads, tokens, dim) = (2, 12, 197, 64);
    let view = View::bhnd("q", [batch, heads, tokens, dim])?;
    let wave = |rate: f32| (0..view.count()).map(|i| (i as f32 * rate).sin()).collect::<Vec<f32>>();
    let (q, k, v) = (wave(0.37), wave(0.61), wave(0.89));

    // The second sequence has 150 tokens; the mask is broadcast over heads and queries.
    let mask: Vec<u8> =
        (0..batch * tokens).map(|i| u8::from(i % tokens < [tokens, 150][i / tokens])).collect();
    let padding = MaskView::dense(MaskKind::Bool, &[batch, 1, 1, tokens])?;
    let problem = Spec::new(DType::F32, view, view, view, view).mask(padding).check()?;

    // The engine, the plan and its workspace are created once per shape.
    let engine = Engine::new(&EngineOptions::default())?;
    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let mut workspace = plan.workspace()?;

    // The rest is repeated for every frame; `run` allocates nothing.
    let mut y = vec![0.0f32; view.count()];
    let mut lse = vec![0.0; problem.rows()];
    let mut inputs = Inputs::new(&q[..], &k[..], &v[..]);
    inputs.mask = Some(MaskElements::Bool(&mask));
    let mut outputs = Outputs::new(&mut y[..]);
    outputs.lse = Some(&mut lse);
    let report = plan.run(inputs, outputs, &mut workspace)?;

    println!(
        "{} on {} worker(s), {} bytes of workspace",
        plan.kernel(),
        report.workers,
        plan.workspace_bytes()
    );
    println!("first output row starts {:?}, its log-sum-exp is {}", &y[..4], lse[0]);
    Ok(())
}
