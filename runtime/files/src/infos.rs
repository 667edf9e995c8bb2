//! Reads and writes the JSON of a `.safetensors` header: an entry for each tensor, including tensors of types that the
//! `safetensors` crate does not know.

use super::source::METADATA;
use ::safetensors::tensor::Dtype;
use serde::de::value::{Error as Unknown, StrDeserializer};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;

/// The element type of a tensor in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Known(Dtype),
    /// Name of a type that the `safetensors` crate does not know.
    Other(String),
}

impl<'de> Deserialize<'de> for Type {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Type, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Dtype::deserialize(StrDeserializer::<Unknown>::new(&name));
        Ok(known.map_or(Type::Other(name), Type::Known))
    }
}

impl Serialize for Type {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Type::Known(dtype) => dtype.serialize(serializer),
            Type::Other(name) => serializer.serialize_str(name),
        }
    }
}

/// A tensor's entry in a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    pub dtype: Type,
    pub shape: Vec<usize>,
    pub data_offsets: (usize, usize),
}

impl Info {
    pub fn bytes(&self) -> usize {
        self.data_offsets.1 - self.data_offsets.0
    }

    /// Returns the number of bits per element. For a type that the `safetensors` crate does not know, computes this
    /// number from the size in bytes and the shape.
    pub fn bits(&self) -> usize {
        match &self.dtype {
            Type::Known(dtype) => dtype.bitsize(),
            Type::Other(_) => {
                let count: usize = self.shape.iter().product();
                self.bytes().saturating_mul(8).checked_div(count).unwrap_or(0)
            }
        }
    }

    /// Returns the type as the `safetensors` crate defines it, or `None` if the crate does not know it.
    pub fn known(&self) -> Option<Dtype> {
        match &self.dtype {
            Type::Known(dtype) => Some(*dtype),
            Type::Other(_) => None,
        }
    }

    /// Checks that the tensor's bytes begin at `start` and fill the shape exactly. The error describes the offending
    /// entry.
    pub fn check(&self, name: &str, start: usize) -> Result<(), String> {
        let (first, end) = self.data_offsets;
        if first != start || end < first {
            return Err(format!("offsets of '{name}' that leave a gap or overlap"));
        }
        let count = self.shape.iter().try_fold(1usize, |count, n| count.checked_mul(*n));
        let bits = count.and_then(|count| match &self.dtype {
            Type::Known(dtype) => count.checked_mul(dtype.bitsize()).map(Some),
            Type::Other(_) => Some(None),
        });
        match bits {
            None => Err("a shape that overflows".into()),
            Some(Some(bits)) if bits % 8 != 0 || bits / 8 != end - first => {
                Err("a shape that does not fit its bytes".into())
            }
            Some(_) => Ok(()),
        }
    }
}

/// Parsed JSON of a header. The memory for parsing is proportional to the number of tensors. The header type of the
/// `safetensors` crate would also keep the entire JSON text.
pub struct Entries {
    pub text: Option<Box<RawValue>>,
    pub tensors: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Entries { text: None, tensors: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        entries.tensors.push((name, map.next_value()?));
                        continue;
                    }
                    let text: Box<RawValue> = map.next_value()?;
                    let checked: Option<Texts> =
                        serde_json::from_str(text.get()).map_err(A::Error::custom)?;
                    if checked.is_some() && entries.text.replace(text).is_some() {
                        return Err(A::Error::duplicate_field(METADATA));
                    }
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// A JSON object with string values. Parsing checks the object and discards it.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of text to text")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                while map.next_entry::<IgnoredAny, String>()?.is_some() {}
                Ok(Texts)
            }
        }
        deserializer.deserialize_map(Visit)
    }
}
