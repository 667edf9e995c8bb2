//! Formats of results on standard output that several commands share.

use crate::error::say;
use crate::foreign::one_line;
use elsa_core::telemetry::record::Record;
use elsa_files::{FileError, Target};
use elsa_runtime::LoadedKernel;
use serde::de::{MapAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::value::RawValue;
use std::fmt::{self, Formatter};
use std::io::{Error, Result, Write};

/// Creates a value that serializes as an object with the given fields, in the given order.
macro_rules! object {
    ($($field:ident: $value:expr),+ $(,)?) => {
        match () {
            #[allow(non_camel_case_types)]
            () => {
                #[derive(serde::Serialize)]
                struct Object<$($field),+> {
                    $($field: $field),+
                }
                Object { $($field: $value),+ }
            }
        }
    };
}
pub(crate) use object;

/// Writes `value` as one line of JSON.
///
/// # Errors
/// Returns an error if serialization or writing fails.
pub fn json(out: &mut impl Write, value: &impl Serialize) -> Result<()> {
    writeln!(out, "{}", serde_json::to_string(value).map_err(Error::other)?)
}

/// Formats a number of bytes. The unit is chosen so that one to four digits are before the decimal point.
#[must_use]
pub fn size(bytes: usize) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b < 1e6 => format!("{:.1} kB", b / 1e3),
        b if b < 1e9 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.2} GB", b / 1e9),
    }
}

/// Formats a number of things, such as `1 row` or `2 rows`. `thing` is the singular; its plural ends in `s`.
#[must_use]
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Writes `bytes` as the new contents of the file of `target`, and names the file on standard error.
///
/// # Errors
/// Returns errors of the file system.
pub fn written(target: Target, bytes: &[u8]) -> std::result::Result<(), FileError> {
    let path = target.path().display().to_string();
    target.write(bytes)?;
    say(&format!("wrote {path}"));
    Ok(())
}

/// A record of a benchmark, together with its kind.
#[derive(Serialize)]
struct Tagged<'a, T> {
    what: &'static str,
    #[serde(flatten)]
    record: &'a T,
}

/// Writes a record of a benchmark as one line of JSON. Its first field is `what`, the kind of the record: `start`,
/// `bench`, `exec`, `trace` or `end`.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn record(out: &mut impl Write, record: &Record) -> Result<()> {
    match record {
        Record::Start(record) => json(out, &Tagged { what: "start", record }),
        Record::Cell(record) => json(out, &Tagged { what: "bench", record }),
        Record::Phase(record) => json(out, &Tagged { what: "exec", record }),
        Record::Trace(record) => json(out, &Tagged { what: "trace", record }),
        Record::End(record) => json(out, &Tagged { what: "end", record }),
    }
}

/// Returns the columns of a CSV row: the names of the fields of `value`, in their order, with their values. Null
/// becomes an empty text, a string is not quoted, and anything else is JSON. Hidden characters are escaped.
///
/// # Errors
/// Returns an error for a value that is not an object.
pub fn columns(value: &impl Serialize) -> Result<Vec<(String, String)>> {
    let text = serde_json::to_string(value).map_err(Error::other)?;
    let fields = serde_json::Deserializer::from_str(&text).deserialize_map(Fields).map_err(Error::other)?;
    fields
        .into_iter()
        .map(|(name, value)| {
            let shown = match value.get() {
                "null" => String::new(),
                text if text.starts_with('"') => serde_json::from_str(text).map_err(Error::other)?,
                other => other.to_owned(),
            };
            Ok((name, one_line(&shown)))
        })
        .collect()
}

/// Visitor that collects the fields of an object in their order.
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(String, Box<RawValue>)>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

/// A kernel that was loaded onto the GPU.
#[derive(Debug, Serialize)]
pub struct Loaded {
    /// Name of the kernel.
    pub name: &'static str,
    /// `cubin`, or `ptx` if the driver compiled the kernel.
    pub form: &'static str,
    /// PTX ISA version of the kernel.
    pub ptx_isa: &'static str,
    /// Milliseconds that loading took.
    pub load_ms: f64,
    /// Registers of each thread.
    pub registers: u32,
    /// Bytes of local memory of each thread, where registers are spilled.
    pub local_bytes: u32,
}

impl From<LoadedKernel> for Loaded {
    fn from(kernel: LoadedKernel) -> Loaded {
        let LoadedKernel { name, form, isa, ms, registers, local_bytes } = kernel;
        Loaded { name, form, ptx_isa: isa, load_ms: ms, registers, local_bytes }
    }
}

/// Writes one line for each loaded kernel.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn loaded(out: &mut impl Write, kernels: &[Loaded]) -> Result<()> {
    for Loaded { name, form, ptx_isa, load_ms, registers, local_bytes } in kernels {
        writeln!(
            out,
            "loaded    {name} from {form}, PTX ISA {ptx_isa}, in {load_ms:.1} ms: {registers} registers, \
             {local_bytes} bytes of local memory"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::telemetry::record::{Cell, End, Phase, Start, Throttling, Trace, text};

    fn line(of: &Record) -> String {
        let mut out = Vec::new();
        record(&mut out, of).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_have_units_and_plurals() {
        assert_eq!(
            (size(999), size(1_500_000), size(2_000_000_000)),
            ("1.0 kB".into(), "1.5 MB".into(), "2.00 GB".into())
        );
        assert_eq!([0, 1, 2].map(|n| count(n, "row")), ["0 rows", "1 row", "2 rows"]);
    }

    #[test]
    fn records_are_objects_with_their_kind() {
        let cell =
            Cell { kernel: text("k"), rel_l2: f64::NAN, throttled: Throttling::NotSeen, ..Cell::default() };
        for (record, what) in [
            (Record::Start(Start::default()), "start"),
            (Record::Cell(cell.clone()), "bench"),
            (Record::Phase(Phase::default()), "exec"),
            (Record::Trace(Trace::default()), "trace"),
            (Record::End(End::default()), "end"),
        ] {
            let text = line(&record);
            assert!(text.starts_with(&format!("{{\"what\":\"{what}\",")) && text.ends_with("}\n"), "{text}");
        }
        let value: serde_json::Value = serde_json::from_str(&line(&Record::Cell(cell))).unwrap();
        assert_eq!((&value["kernel"], &value["throttled"]), (&"k".into(), &"not seen".into()));
        assert!(
            value["rel_l2"].is_null()
                && value["energy_mj"].is_null()
                && value["marks"] == serde_json::json!([])
        );
    }

    #[test]
    fn columns_are_the_fields_in_their_order() {
        let mut cell = Cell { shape: text("1,\"1\",2"), n: 7, window: Some([-1, 4]), ..Cell::default() };
        cell.marks.push(text("a, b")).unwrap();
        let columns = columns(&cell).unwrap();
        let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names[0], names[1], names[names.len() - 1]), ("workload", "backend", "throttled"));
        let of = |name: &str| columns.iter().find(|(found, _)| found == name).unwrap().1.clone();
        let found = ["workload", "shape", "n", "window", "marks", "throttled"].map(of);
        assert_eq!(found, ["", "1,\"1\",2", "7", "[-1,4]", "[\"a, b\"]", "cannot be told"]);
        assert!(super::columns(&3).is_err());
    }

    #[test]
    fn every_kernel_has_a_line() {
        let kernel = |name| Loaded {
            name,
            form: "ptx",
            ptx_isa: "6.5",
            load_ms: 12.34,
            registers: 168,
            local_bytes: 0,
        };
        let mut out = Vec::new();
        loaded(&mut out, &[kernel("first"), kernel("second")]).unwrap();
        let line = |name| {
            format!(
                "loaded    {name} from ptx, PTX ISA 6.5, in 12.3 ms: 168 registers, 0 bytes of local memory\n"
            )
        };
        assert_eq!(String::from_utf8(out).unwrap(), line("first") + &line("second"));
    }
}
