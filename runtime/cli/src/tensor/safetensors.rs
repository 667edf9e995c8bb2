//! The `.safetensors` format: eight bytes with the length of a JSON header, the header, the elements.
//!
//! The library reads and checks. It refuses offsets that leave gaps, overlap or do not end with the file, and
//! shapes that do not fit their bytes.

use super::stored::{Parsed, Stored, byte_length};
use crate::error::TensorError;
use ::safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};

/// Parses a whole file and returns the tensor called `name`.
///
/// # Errors
/// A malformed file, a name that it does not hold, and a type that no argument takes.
pub fn parse<'a>(bytes: &'a [u8], name: &str) -> Result<Parsed<'a>, TensorError> {
    offsets_lie_within(bytes)?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| TensorError::Format {
        format: ".safetensors",
        found: describe(&e),
        allowed: "a header whose offsets and shapes are those of the data",
    })?;
    let tensor = file.tensor(name).map_err(|_| {
        let mut names = file.names();
        names.sort_unstable();
        let more = if names.len() > 8 { ", ..." } else { "" };
        names.truncate(8);
        TensorError::Name { name: name.into(), allowed: format!("{}{more}", names.join(", ")) }
    })?;
    let dtype = match tensor.dtype() {
        Dtype::F32 => Stored::F32,
        Dtype::F16 => Stored::F16,
        Dtype::BF16 => Stored::Bf16,
        Dtype::BOOL => Stored::Bool,
        Dtype::I32 => Stored::I32,
        Dtype::I64 => Stored::I64,
        other => {
            return Err(TensorError::Type {
                found: format!("{other:?}"),
                allowed: "F32, F16, BF16, BOOL, I64, I32",
            });
        }
    };
    let sizes: Vec<u64> = tensor.shape().iter().map(|&n| n as u64).collect();
    let (shape, needed) = byte_length(dtype, &sizes)?;
    let data = tensor.data();
    if data.len() != needed {
        return Err(TensorError::Length { found: data.len(), needed, shape, dtype: dtype.name() });
    }
    Ok(Parsed { dtype, shape, bytes: data })
}

/// Refuses offsets beyond the end of the file. The library adds the last offset to the length of the header
/// without a check, which panics in builds with overflow checks.
fn offsets_lie_within(bytes: &[u8]) -> Result<(), TensorError> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Ok(()) };
    let header = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|n| rest.get(..n));
    // The library refuses headers that are missing or are not JSON.
    let Some(Ok(serde_json::Value::Object(entries))) = header.map(serde_json::from_slice) else {
        return Ok(());
    };
    for (name, entry) in &entries {
        let offsets = entry.get("data_offsets").and_then(serde_json::Value::as_array);
        if offsets.into_iter().flatten().any(|x| x.as_u64().is_none_or(|x| x > bytes.len() as u64)) {
            return Err(TensorError::Format {
                format: ".safetensors",
                found: format!("offsets of '{name}' beyond the end of the file"),
                allowed: "offsets within the file",
            });
        }
    }
    Ok(())
}

fn describe(error: &SafeTensorError) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall => "too short".into(),
        E::HeaderTooLarge | E::InvalidHeaderLength => "a header longer than the file".into(),
        E::InvalidHeader(_) => "a header that is not text".into(),
        E::InvalidHeaderStart | E::InvalidHeaderDeserialization(_) | E::JsonError(_) => {
            "a header that is not the JSON of tensors".into()
        }
        E::InvalidOffset(name) => format!("offsets of '{name}' that leave a gap or overlap"),
        E::TensorInvalidInfo | E::InvalidTensorView(..) | E::MisalignedSlice => {
            "a shape that does not fit its bytes".into()
        }
        E::MetadataIncompleteBuffer => "data of another length than the header gives".into(),
        E::ValidationOverflow => "a shape that overflows".into(),
        other => format!("{other:?}"),
    }
}

/// The bytes of a file that holds `tensors`: name, type, shape, elements.
///
/// # Errors
/// What the library reports.
pub fn serialize(tensors: &[(&str, Stored, &[usize], &[u8])]) -> std::io::Result<Vec<u8>> {
    let views = tensors
        .iter()
        .map(|&(name, dtype, shape, bytes)| {
            let dtype = match dtype {
                Stored::F32 => Dtype::F32,
                Stored::F16 => Dtype::F16,
                Stored::Bf16 => Dtype::BF16,
                Stored::Bool => Dtype::BOOL,
                Stored::I32 => Dtype::I32,
                Stored::I64 => Dtype::I64,
            };
            TensorView::new(dtype, shape.to_vec(), bytes).map(|view| (name, view))
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| std::io::Error::other(format!("{e:?}")))?;
    ::safetensors::serialize(views, None).map_err(|e| std::io::Error::other(format!("{e:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Vec<u8> {
        let (a, b) = ([1u8, 0, 1], [9u8; 16]);
        serialize(&[("mask", Stored::Bool, &[3], &a), ("q", Stored::Bf16, &[2, 4], &b)]).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = good();
        let q = parse(&bytes, "q").unwrap();
        assert_eq!((q.dtype, &q.shape[..], q.bytes), (Stored::Bf16, &[2, 4][..], &[9u8; 16][..]));
        assert_eq!(parse(&bytes, "mask").unwrap().bytes, [1, 0, 1]);
    }

    #[test]
    fn a_missing_name_lists_those_there_are() {
        let error = parse(&good(), "k").unwrap_err().to_string();
        assert!(error.contains("'k'") && error.contains("mask, q"), "{error}");
    }

    #[test]
    fn lies_are_refused() {
        let file = |header: &str, payload: &[u8]| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.extend(payload);
            bytes
        };
        let entry = |shape: &str, offsets: &str| {
            format!(r#"{{"q":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(parse(&file(&entry("[3]", "[0,12]"), &[0; 12]), "q").is_ok());
        for (shape, offsets, payload) in [
            ("[3]", "[0,12]", 11),
            ("[3]", "[0,12]", 13),
            ("[4]", "[0,12]", 12),
            ("[3]", "[4,16]", 16),
            ("[3]", "[0,18446744073709551615]", 12),
            ("[9223372036854775807,4]", "[0,12]", 12),
            ("[-3]", "[0,12]", 12),
        ] {
            let error = parse(&file(&entry(shape, offsets), &vec![0; payload]), "q").unwrap_err().to_string();
            assert!(error.contains("allowed") && !error.contains('\n'), "{error}");
        }
        let double = entry("[1]", "[0,8]").replace("F32", "F64");
        assert!(parse(&file(&double, &[0; 8]), "q").unwrap_err().to_string().contains("type F64"));
    }

    #[test]
    fn no_bytes_panic() {
        let good = good();
        for cut in 0..good.len() {
            assert!(parse(&good[..cut], "q").is_err());
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(parse(&longer, "q").is_err());
        for at in 0..good.len() - 19 {
            for byte in 0..=255 {
                let mut bad = good.clone();
                bad[at] = byte;
                if let Ok(parsed) = parse(&bad, "q") {
                    assert_eq!(
                        parsed.bytes.len(),
                        parsed.shape.iter().product::<usize>() * parsed.dtype.size()
                    );
                }
            }
        }
    }
}
