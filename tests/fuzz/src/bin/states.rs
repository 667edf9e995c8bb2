//! Reads arbitrary bytes as the file of a quorum task. The result is a description, with states or gradient shares
//! whose sizes match it, or a typed error.
#![no_main]

use elsa_files::Fault;
use elsa_files::task::{Description, Kind};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

/// Returns the value of a result, or `None` for a typed error.
fn typed<T>(result: Result<T, Fault>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Fault::Content(error)) => {
            assert!(error.to_string().contains("allowed: "), "{error}");
            None
        }
        Err(fault) => panic!("{fault:?}"),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (mut file, length) = (Cursor::new(bytes), bytes.len() as u64);
    let Some((description, task)) = typed(Description::read(&mut file, length)) else { return };
    let whole = &description.whole;
    let Some(sums) = typed(description.sums(&task, &mut file, length)) else { return };
    let held = if whole.run.is_empty() { [task.query_tokens(), task.key_tokens()] } else { [0; 2] };
    assert_eq!([sums.0[0].len(), sums.0[1].len()], held);
    if description.kind == Kind::Gradients {
        let Some(shares) = typed(description.shares(&task, &mut file, length)) else { return };
        let sequences = [1, 2].map(|heads| whole.shape[0] * whole.shape[heads]);
        assert_eq!(shares.query.len(), sequences[0] * task.query_tokens() * whole.shape[5]);
        assert_eq!(shares.key.len(), sequences[1] * task.key_tokens() * whole.shape[5]);
        assert_eq!(shares.value.len(), sequences[1] * task.key_tokens() * whole.shape[6]);
        return;
    }
    let Some(states) = typed(description.states(&task, &mut file, length)) else { return };
    let rows = whole.sequences() * task.query_tokens();
    assert_eq!((states.m.len(), states.s.len()), (rows, rows));
    assert_eq!(states.w.len(), rows * whole.shape[6]);
});
