//! Checks that replacing the tensors of a bound call, running it and reporting the run allocate nothing, and that a call is not
//! bound to a workspace that is too small.

#![allow(clippy::unwrap_used)]

use elsa::*;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::ptr::null;

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of elements of a tensor: one head, 16 tokens, head size 8.
const COUNT: usize = 16 * 8;

/// Number of sequences of a problem whose workspace is larger.
const BATCH: usize = 64;

fn input(of: &[f32]) -> elsa_input {
    elsa_input { data: of.as_ptr().cast(), bytes: size_of_val(of) }
}

#[test]
fn replacing_the_tensors_of_a_bound_call_and_running_it_allocate_nothing() {
    let [q, k, v] = [0.1f32, 0.2, 0.3].map(|rate| std::array::from_fn(|i| (i as f32 * rate).sin()));
    let q: [f32; COUNT] = q;
    let (k, v): ([f32; COUNT], [f32; COUNT]) = (k, v);
    let mut out = [[0.0f32; COUNT]; 2];
    let options = elsa_engine_options { threads: 1, ..Default::default() };
    let (mut engine, mut plan, mut room, mut bound) = Default::default();
    let mut view = elsa_view::default();
    let mut report = elsa_report::default();
    // SAFETY: every pointer is to a local value that no other thread uses, and the tensors outlive the bound call.
    unsafe {
        assert_eq!(elsa_engine_create(&raw const options, &raw mut engine), ELSA_STATUS_OK);
        assert_eq!(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 16, 8, &raw mut view), ELSA_STATUS_OK);
        let problem = elsa_problem { q: view, k: view, v: view, out: view, ..Default::default() };
        assert_eq!(elsa_plan_create(engine, &raw const problem, null(), &raw mut plan), ELSA_STATUS_OK);
        assert_eq!(elsa_workspace_create(plan, &raw mut room), ELSA_STATUS_OK);
        let (a, b) = (input(&q), input(&k));
        let given = [(a, b), (b, a)].map(|(q, k)| elsa_inputs { q, k, v: input(&v), ..Default::default() });
        let to = out.each_mut().map(|out| {
            let (data, bytes) = (out.as_mut_ptr().cast(), size_of_val(out));
            elsa_outputs { out: elsa_output { data, bytes }, ..Default::default() }
        });
        assert_eq!(
            elsa_bind(plan, room, &raw const given[0], &raw const to[0], &raw mut bound),
            ELSA_STATUS_OK
        );
        assert_eq!(elsa_bound_run(bound, &raw mut report), ELSA_STATUS_OK);
        let region = Region::new(GLOBAL);
        for (given, to) in given.iter().zip(&to).rev() {
            assert_eq!(elsa_bound_set(bound, given, to), ELSA_STATUS_OK);
            assert_eq!(elsa_bound_run(bound, &raw mut report), ELSA_STATUS_OK);
        }
        let change = region.change();
        assert_eq!(change.allocations + change.reallocations, 0, "{change:?}");
    }
    // SAFETY: as above.
    unsafe {
        let (mut large, mut none) = <(elsa_plan, elsa_bound)>::default();
        assert_eq!(elsa_view_init(ELSA_LAYOUT_BHND, BATCH, 1, 16, 8, &raw mut view), ELSA_STATUS_OK);
        let problem = elsa_problem { q: view, k: view, v: view, out: view, ..Default::default() };
        assert_eq!(elsa_plan_create(engine, &raw const problem, null(), &raw mut large), ELSA_STATUS_OK);
        let (x, mut y) = (vec![0.5f32; BATCH * COUNT], vec![0.0f32; BATCH * COUNT]);
        let inputs = elsa_inputs { q: input(&x), k: input(&x), v: input(&x), ..Default::default() };
        let (data, bytes) = (y.as_mut_ptr().cast(), size_of_val(&y[..]));
        let outputs = elsa_outputs { out: elsa_output { data, bytes }, ..Default::default() };
        let status = elsa_bind(large, room, &raw const inputs, &raw const outputs, &raw mut none);
        assert_eq!((status, none.id), (ELSA_STATUS_ARGUMENT, 0));
        assert_eq!(elsa_plan_destroy(large), ELSA_STATUS_OK);
    }
    assert!(report.workers > 0 && out[0] != out[1] && out.iter().flatten().any(|x| *x != 0.0));
    assert_eq!(elsa_bound_destroy(bound), ELSA_STATUS_OK);
    assert_eq!(elsa_workspace_destroy(room), ELSA_STATUS_OK);
    assert_eq!(elsa_plan_destroy(plan), ELSA_STATUS_OK);
    assert_eq!(elsa_engine_destroy(engine), ELSA_STATUS_OK);
}
