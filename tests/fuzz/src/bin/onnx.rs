//! Rewrites arbitrary bytes as an ONNX model. The result is a model whose attention nodes are replaced or kept, or a
//! typed error.
#![no_main]

use elsa_onnx::{Limits, rewritten};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match rewritten(bytes, Limits::SMALL) {
        Ok((attentions, written)) => {
            let replaced = attentions.iter().filter(|attention| attention.replaced).count();
            assert!(replaced > 0 || written == bytes, "a model without a replacement was changed");
            let (again, _) = rewritten(&written, Limits::SMALL).expect("what was written is a model");
            assert_eq!(again.len(), attentions.len() - replaced, "attention that came or stayed");
        }
        Err(error) => assert!(error.to_string().contains("allowed: "), "{error}"),
    }
});
