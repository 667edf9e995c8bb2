//! Shared code of the fuzz targets: checks of the readers of tensor files, and problems and structs of the C interface.

pub mod arena;
pub mod gradients;
pub mod gradients_task;
pub mod linear;
pub mod problems;
pub mod series;
pub mod stream;
pub mod structs;
pub mod task;

use elsa_files::{Accept, Buffer, Contents, Data, Fault, Format, read};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Cursor;

/// Limits the data of this process to a gibibyte. A call that needs more then gets an error from the system, as on a
/// machine whose memory is exhausted, and must return a typed error.
///
/// # Panics
/// Panics if the system refuses the limit.
pub fn limit_memory() {
    let limit = Rlimit { current: Some(1 << 30), ..getrlimit(Resource::Data) };
    setrlimit(Resource::Data, limit).expect("a limit on data");
}

/// Reads the tensor `name` from the file contents `bytes`: once as floats, once as a mask and once as lengths.
///
/// # Panics
/// Panics if the result is neither a typed error nor a tensor whose number of elements matches its shape.
pub fn reads(bytes: &[u8], format: Format, name: Option<&str>) {
    for accept in [Accept::Float, Accept::Mask, Accept::Lengths] {
        match read(Cursor::new(bytes), bytes.len() as u64, format, name, accept) {
            Ok(Contents { shape, data, .. }) => {
                let count = shape.iter().try_fold(1usize, |a, &n| a.checked_mul(n)).expect("a product");
                let found = match data {
                    Data::Float(Buffer::F32(x)) => x.len(),
                    Data::Float(Buffer::F16(x)) => x.len(),
                    Data::Float(Buffer::Bf16(x)) => x.len(),
                    Data::Bool(x) => x.len(),
                    Data::Integer(x) => x.len(),
                };
                assert_eq!(found, count);
            }
            Err(Fault::Content(error)) => assert!(error.to_string().contains("allowed: "), "{error}"),
            Err(fault) => panic!("{fault:?}"),
        }
    }
}
