//! Runs the models of another program: `host RUNTIME OPERATOR run FOLDER`.
//!
//! For each `NAME.onnx` in the folder, `NAME.in` contains the inputs, and the outputs are written to `NAME.out`. The first
//! line of the inputs contains the names of the outputs. Each tensor is a line with its name, the number of its element
//! type and its sizes, followed by its elements in little-endian order.

use elsa_onnxruntime::{Data, HostTensor, Model, Options, Runtime};
use half::f16;
use std::fs;
use std::path::{Path, PathBuf};

/// Takes the first line from `bytes`, and returns its words.
fn line<'a>(bytes: &mut &'a [u8]) -> Option<Vec<&'a str>> {
    let at = bytes.iter().position(|&byte| byte == b'\n')?;
    let (line, rest) = bytes.split_at(at);
    *bytes = &rest[1..];
    Some(std::str::from_utf8(line).ok()?.split(' ').collect())
}

/// Decodes elements of `N` bytes.
fn elements<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| from(*bytes)).collect()
}

/// Takes the first tensor from `bytes`, and returns it with its name.
fn tensor(bytes: &mut &[u8]) -> Option<(String, HostTensor)> {
    let words = line(bytes)?;
    let [name, element, sizes @ ..] = &words[..] else { return None };
    let dims: Vec<i64> = sizes.iter().map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let count = usize::try_from(dims.iter().product::<i64>()).ok()?;
    let size = match *element {
        "1" => 4,
        "7" => 8,
        "10" => 2,
        _ => return None,
    };
    let (own, rest) = bytes.split_at_checked(count.checked_mul(size)?)?;
    *bytes = rest;
    let data = match size {
        4 => Data::F32(elements(own, f32::from_le_bytes)),
        8 => Data::I64(elements(own, i64::from_le_bytes)),
        _ => Data::F16(elements(own, f16::from_le_bytes)),
    };
    Some(((*name).to_owned(), HostTensor { dims, data }))
}

/// Appends a tensor to `out`.
fn write(name: &str, tensor: &HostTensor, out: &mut Vec<u8>) -> Result<(), String> {
    let sizes: String = tensor.dims.iter().map(|size| format!(" {size}")).collect();
    out.extend(format!("{name} {}{sizes}\n", tensor.data.element()).bytes());
    match &tensor.data {
        Data::F32(all) => all.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Data::I64(all) => all.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Data::F16(all) => all.iter().for_each(|x| out.extend(x.to_le_bytes())),
        other => return Err(format!("an output of type {}; allowed: f32, f16 and i64", other.element())),
    }
    Ok(())
}

fn run(runtime: &Runtime, model: &Path) -> Result<String, String> {
    let inputs = fs::read(model.with_extension("in")).map_err(|e| e.to_string())?;
    let mut rest = &inputs[..];
    let names = line(&mut rest).ok_or("no names of outputs")?;
    let mut tensors = Vec::new();
    while !rest.is_empty() {
        tensors.push(tensor(&mut rest).ok_or("bytes that are not a tensor")?);
    }
    let options = Options { threads: 1, ..Options::default() };
    let session = runtime.session(Model::File(model), &options).map_err(|e| e.to_string())?;
    let given: Vec<(&str, &HostTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let found = session.run(&given, &names, None).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    for (name, tensor) in names.iter().zip(&found) {
        write(name, tensor, &mut out)?;
    }
    fs::write(model.with_extension("out"), out).map_err(|e| e.to_string())?;
    Ok(format!("{} outputs", found.len()))
}

/// Runs each model in `folder`, in the order of their names.
pub fn models(runtime: &Runtime, folder: &Path, note: &mut impl FnMut(&str, Result<String, String>)) {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) => return note(&folder.display().to_string(), Err(e.to_string())),
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut models: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "onnx")).collect();
    models.sort();
    for model in models {
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        note(&name, run(runtime, &model));
    }
}
