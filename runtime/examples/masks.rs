//! What masks cost: thread time of masked calls over that of the plain one, for every form of mask.
//!
//! `cargo run --release -p elsa-runtime --example masks`

use elsa_core::attention::{Inputs, MaskElements, MaskKind, MaskView, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, Engine, EngineOptions, PlanOptions};
use std::time::Instant;

/// Name, kind and sizes of a mask, and its elements where it is boolean.
type Form<'a> = (&'a str, Option<(MaskKind, Vec<usize>, &'a [u8])>);
type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let backend: Option<Backend> = std::env::args().nth(1).map(|name| name.parse()).transpose()?;
    let engine = Engine::new(&EngineOptions { backend, threads: Some(1), ..EngineOptions::default() })?;
    println!("{}", engine.kernel());
    for [batch, heads, tokens, dim] in [[1, 12, 197, 64], [64, 3, 49, 32], [4, 12, 256, 32], [1, 12, 900, 64]]
    {
        let view = View::dense("q", Layout::Bhnd, &[batch, heads, tokens, dim], None)?;
        let x: Vec<f32> = (0..view.count()).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 500.0).collect();
        let full = batch * heads * tokens * tokens;
        let floats: Vec<f32> = (0..full).map(|i| (i * 31 % 7) as f32 * 0.1).collect();
        let bools = vec![1u8; full];
        let some: Vec<u8> = (0..full).map(|i| u8::from(i * 7919 % 5 != 0)).collect();
        let float = MaskKind::Additive(DType::F32);
        let forms: [Form<'_>; 10] = [
            ("plain", None),
            ("float full", Some((float, vec![batch, heads, tokens, tokens], &[]))),
            ("float heads", Some((float, vec![heads, tokens, tokens], &[]))),
            ("float batch", Some((float, vec![batch, 1, tokens, tokens], &[]))),
            ("float all", Some((float, vec![tokens, tokens], &[]))),
            ("float row", Some((float, vec![batch, 1, 1, tokens], &[]))),
            ("bool full", Some((MaskKind::Bool, vec![batch, heads, tokens, tokens], &some))),
            ("bool batch", Some((MaskKind::Bool, vec![batch, 1, tokens, tokens], &some))),
            ("bool row", Some((MaskKind::Bool, vec![batch, 1, 1, tokens], &some))),
            ("bool true", Some((MaskKind::Bool, vec![batch, heads, tokens, tokens], &bools))),
        ];
        let mut y = vec![0.0f32; view.count()];
        let mut times = vec![f64::INFINITY; forms.len()];
        for _ in 0..40 {
            for (form, best) in forms.iter().zip(&mut times) {
                let mut spec = Spec::new(DType::F32, view, view, view, view);
                let mut inputs = Inputs::new(Elements::F32(&x), Elements::F32(&x), Elements::F32(&x));
                if let (_, Some((kind, dims, bytes))) = form {
                    let mask = MaskView::dense(*kind, dims)?;
                    let count = mask.extent();
                    spec.mask = Some(mask);
                    inputs.mask = Some(match kind {
                        MaskKind::Bool => MaskElements::Bool(&bytes[..count]),
                        MaskKind::Additive(_) => MaskElements::Additive(Elements::F32(&floats[..count])),
                    });
                }
                let plan = engine.plan(&spec.check()?, &PlanOptions::default())?;
                let mut workspace = plan.workspace()?;
                let mut bound = plan.bind(inputs, Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
                bound.run()?;
                let start = Instant::now();
                bound.run()?;
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
        print!("{batch} x {heads} x {tokens} x {dim}: {:.3} ms", times[0] * 1e3);
        for ((name, _), time) in forms.iter().zip(&times).skip(1) {
            print!(", {name} {:.2}", time / times[0]);
        }
        println!();
    }
    Ok(())
}
