//! Tests axes without elements. Every axis except the head size may be empty; the output is then a tensor without
//! elements, or contains zeros for rows without a key. The strides of empty axes are large, because they have no effect.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Alignment, MaskKind, Outputs, Spec};
use elsa_core::linear::{Form, Rule};
use elsa_oracle::cases::{MaskParams, Params};
use elsa_oracle::gradients::{GradientBuffers, GradientCase};
use elsa_oracle::strides::{TURNS, far_case};
use elsa_oracle::{engines, linear};
use elsa_runtime::{Backend, BackwardPlanOptions, LinearPlanOptions, Method, PlanOptions};

/// Numbers of sequences, heads, queries and keys; at least one of the four is zero.
const SHAPES: [[usize; 4]; 7] =
    [[0, 2, 5, 9], [2, 0, 5, 9], [2, 2, 0, 9], [2, 2, 5, 0], [0, 0, 5, 9], [0, 2, 0, 0], [0, 0, 0, 0]];

fn params([batch, heads, queries, keys]: [usize; 4]) -> Params {
    Params { batch, heads, kv_heads: heads, ..Params::plain(queries, keys, 8, 12) }
}

#[test]
fn attention_answers_where_axes_are_empty() {
    let mask = |keys| Some(MaskParams { kind: MaskKind::Bool, dims: vec![keys], density: 0.5 });
    for engine in engines(2) {
        for (turn, shape) in SHAPES.into_iter().enumerate() {
            let plain = params(shape);
            let keys = shape[3];
            for (name, params) in [
                ("plain", plain.clone()),
                ("causal", Params { causal: Some(Alignment::BottomRight), ..plain.clone() }),
                ("lengths", Params { lengths: true, causal: Some(Alignment::TopLeft), ..plain.clone() }),
                ("mask", Params { mask: mask(keys), ..plain.clone() }),
                ("past", Params { past: Some(3), present: true, ..plain.clone() }),
            ] {
                let case = far_case(&params.build(format!("{name} {shape:?}")), turn % TURNS);
                let problem = case.problem();
                for method in [Method::Elsa, Method::Math] {
                    for certify in [false, true] {
                        let options =
                            PlanOptions::default().method(method).certify(certify).all_workers(true);
                        let plan = engine.plan(&problem, &options).unwrap();
                        let (mut buffers, mut workspace) = (case.buffers(), plan.workspace().unwrap());
                        let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
                        bound.run().unwrap();
                        drop(bound);
                        case.naive().check_all(&buffers, 1024).unwrap();
                        if problem.rows() == 0 && !params.present {
                            // An output without elements may be absent.
                            plan.bind(case.inputs(), Outputs::default(), &mut workspace)
                                .unwrap()
                                .run()
                                .unwrap();
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn linear_attention_answers_where_axes_are_empty() {
    for engine in engines(2) {
        for [batch, heads, tokens, _] in SHAPES {
            for rule in [Rule::Linear, Rule::Gated, Rule::Delta, Rule::GatedDelta] {
                for form in Form::ALL.into_iter().map(Some).chain([None]) {
                    let plain = linear::Params::plain(rule, tokens, [8, 12]);
                    let params = linear::Params { batch, heads: [heads; 3], present: true, ..plain };
                    params.build().check_on(&engine, &LinearPlanOptions::default().form(form));
                }
            }
        }
    }
}

#[test]
fn gradients_are_empty_or_zero_where_axes_are() {
    for engine in engines(2).into_iter().filter(|engine| engine.backend() != Backend::Cuda) {
        for (turn, shape) in SHAPES.into_iter().enumerate() {
            let case = far_case(&params(shape).build("empty"), turn % TURNS);
            let given = GradientCase::of(&case).unwrap();
            let plan = engine.backward_plan(&given.problem, &BackwardPlanOptions::default()).unwrap();
            let (mut found, mut workspace) =
                (GradientBuffers::room(&given.problem), plan.workspace().unwrap());
            plan.bind(given.inputs(), found.gradients(), &mut workspace).unwrap().run().unwrap();
            assert!(found.bits().iter().all(|bits| *bits == 0), "{shape:?}");
            assert!(given.scalar().bits().iter().all(|bits| *bits == 0), "{shape:?}");
        }
    }
}

#[test]
fn a_head_size_of_zero_and_key_heads_without_query_heads_are_refused() {
    let spec = params([2, 2, 5, 9]).build("whole").spec;
    let empty = params([2, 0, 5, 9]).build("no heads").spec;
    let refused = |spec: Spec| spec.check().unwrap_err();
    let groups = refused(spec.query(empty.query).output(empty.output));
    assert_eq!(groups, ArgumentError::Groups { heads: 0, kv_heads: 2 });
    assert_eq!(groups.to_string(), "k: 2 heads for 0 query heads; allowed: 0");
    let groups = refused(spec.key(empty.key).value(empty.value));
    assert_eq!(groups, ArgumentError::Groups { heads: 2, kv_heads: 0 });
}
