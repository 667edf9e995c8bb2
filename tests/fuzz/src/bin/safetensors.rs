//! The reader of `.safetensors` files: under any name, any bytes are a tensor whose payload has the size of
//! its shape, or a typed error.
#![no_main]

use elsa_edge::tensor::safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for name in ["q", "k", "m", "", "__metadata__"] {
        match safetensors::parse(bytes, name) {
            Ok(tensor) => {
                let count =
                    tensor.shape.iter().try_fold(1usize, |a, &n| a.checked_mul(n)).expect("a product");
                assert_eq!(Some(tensor.bytes.len()), count.checked_mul(tensor.dtype.size()));
                let file = bytes.as_ptr_range();
                let data = tensor.bytes.as_ptr_range();
                assert!(tensor.bytes.is_empty() || file.start <= data.start && data.end <= file.end);
                let again = safetensors::serialize(&[(name, tensor.dtype, &tensor.shape, tensor.bytes)])
                    .expect("a file");
                assert_eq!(safetensors::parse(&again, name).as_ref(), Ok(&tensor));
            }
            Err(error) => assert!(error.to_string().contains("allowed: "), "{error}"),
        }
    }
});
