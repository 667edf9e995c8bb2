//! Reads arbitrary bytes as a `.npy` file. The result is a tensor whose number of elements matches its shape, or a
//! typed error.
#![no_main]

use elsa_files::{Fault, Format, Header, npy};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    elsa_fuzz::reads(bytes, Format::Npy, None);
    let mut rest = bytes;
    match npy::header(&mut rest, bytes.len() as u64) {
        Ok(header) => {
            assert_eq!(rest.len(), header.bytes, "elements that are not the end of the file");
            let mut again = Vec::new();
            npy::write_header(&mut again, header.dtype, &header.shape).expect("memory takes any header");
            let length = (again.len() + header.bytes) as u64;
            let Header { dtype, shape, .. } = npy::header(&mut &again[..], length).expect("a header");
            assert_eq!((dtype, shape), (header.dtype, header.shape));
        }
        Err(Fault::Content(error)) => assert!(error.to_string().contains("allowed: "), "{error}"),
        Err(fault) => panic!("{fault:?}"),
    }
});
