//! The reader of a task's states: any bytes are a description with states of its shape, or a typed error.
#![no_main]

use elsa_edge::task::file::Description;
use elsa_edge::tensor::Fault;
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

/// The value; none for a typed error.
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
    let Some(states) = typed(description.states(&task, &mut file, length)) else { return };
    let rows = description.whole.sequences() * task.query_tokens();
    assert_eq!((states.m.len(), states.s.len()), (rows, rows));
    assert_eq!(states.w.len(), rows * description.whole.shape[6]);
});
