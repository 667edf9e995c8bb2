//! The reader of `.npy` files: any bytes are a tensor whose payload has the size of its shape, or a typed error.
#![no_main]

use elsa_edge::tensor::npy;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match npy::parse(bytes) {
    Ok(tensor) => {
        let count = tensor.shape.iter().try_fold(1usize, |a, &n| a.checked_mul(n)).expect("a product");
        assert_eq!(Some(tensor.bytes.len()), count.checked_mul(tensor.dtype.size()));
        assert!(bytes.ends_with(tensor.bytes), "elements that are not the end of the file");
        let mut again = Vec::new();
        npy::write(&mut again, tensor.dtype, &tensor.shape, tensor.bytes).expect("memory takes any tensor");
        assert_eq!(npy::parse(&again).as_ref(), Ok(&tensor));
    }
    Err(error) => assert!(error.to_string().contains("allowed: "), "{error}"),
});
