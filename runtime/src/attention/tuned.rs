//! Tuned files: the fastest kernels and divisions that `elsa tune` measured on a GPU.
//!
//! A tuned file is in TOML format. It names the device, the driver and the library version of the measurement, has one
//! `[[shape]]` for each class of shapes, and ends with the number of shapes, so that a truncated file is detected:
//!
//! ```toml
//! format = 1
//! [device]
//! name = "NVIDIA Tegra X2"
//! capability = "6.2"
//! sms = 2
//! driver = "10.2"
//! library = "0.1.0"
//! [[shape]]
//! dtype = "f32"
//! heads = 1
//! kv_heads = 1
//! queries = 196
//! keys = 196
//! head_dim = 64
//! value_dim = 64
//! windows = 1
//! changes = []
//! half_scores = false
//! kernel = "attention_f32_d64_q32k64__sm53_exp2_approx"
//! splits = 2
//! [end]
//! shapes = 1
//! ```
//!
//! A file is used only if all of it is valid for this device and library; otherwise the complete file is rejected.

use crate::cuda::gpu::DeviceInfo;
use crate::error::PlanError;
use elsa_core::attention::Problem;
use elsa_core::attention::plan::{Changes, Division, GpuKernelSpec, ShapeClass};
use elsa_core::dtype::DType;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};
use serde::Deserialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Environment variable with the path of a tuned file.
const VARIABLE: &str = "ELSA_TUNED";
/// Path of a tuned file in the user's configuration folder.
const STANDARD: &str = "elsa/tuned.toml";
/// Version of the file format.
const FORMAT: u32 = 1;
/// Largest accepted size of a tuned file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Version of this library. A tuned file applies only to the library version whose kernels were measured.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Choice of the tuned file that an engine uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// The file that the environment variable `ELSA_TUNED` names; no file if the variable is unset or empty.
    #[default]
    Environment,
    /// No tuned file.
    Off,
    /// The file at [`Tuned::standard_path`].
    Standard,
    /// The file at this path.
    File(PathBuf),
}

/// The fastest kernel and number of splits for a class of shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedShape {
    /// The class of shapes.
    pub class: ShapeClass,
    /// Name of the kernel.
    pub kernel: String,
    /// Number of splits into which the keys are divided.
    pub splits: usize,
}

/// The contents of a tuned file. All entries are valid for this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    device: Device,
    shapes: Vec<(TunedShape, Division)>,
}

/// A tuned file that was selected for an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Contents of the file, or the reason why they are not used.
    pub contents: Result<Tuned, PlanError>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    capability: String,
    sms: usize,
    driver: String,
    library: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    device: Device,
    #[serde(default)]
    shape: Vec<Entry>,
    end: End,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    shapes: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    value_dim: usize,
    windows: usize,
    changes: Vec<String>,
    half_scores: bool,
    kernel: String,
    splits: usize,
}

impl Device {
    fn of(info: &DeviceInfo) -> Device {
        let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        Device {
            name: info.name.clone(),
            capability: version(info.profile.capability),
            sms: info.profile.sms,
            driver: version(info.driver),
            library: VERSION.to_owned(),
        }
    }

    /// Checks that the device, the driver version and the library version equal those of `other`.
    fn check(&self, other: &Device) -> Result<(), PlanError> {
        let facts = |d: &Device| {
            [
                ("device", d.name.clone()),
                ("compute capability", d.capability.clone()),
                ("a number of SMs of", d.sms.to_string()),
                ("driver", d.driver.clone()),
                ("library", d.library.clone()),
            ]
        };
        for ((what, found), (_, allowed)) in facts(self).into_iter().zip(facts(other)) {
            if found != allowed {
                return Err(PlanError::TunedOther { what, found, allowed });
            }
        }
        Ok(())
    }
}

/// Iterates over the attention kernels in the order in which the chooser numbers them.
fn candidates() -> impl Iterator<Item = &'static GpuKernelSpec> {
    GPU_KERNELS.iter().filter_map(GpuKernel::attention)
}

impl Entry {
    /// Checks the entry and returns its shape and division.
    fn checked(self) -> Result<(TunedShape, Division), String> {
        let dtype =
            [DType::F32, DType::F16, DType::Bf16].into_iter().find(|dtype| dtype.name() == self.dtype);
        let dtype = dtype.ok_or_else(|| format!("dtype {:?}", self.dtype))?;
        let changes = self.changes.iter().try_fold(Changes::default(), |set, name| set.with(name));
        let class = ShapeClass {
            dtype,
            half_scores: self.half_scores,
            heads: self.heads,
            kv_heads: self.kv_heads,
            queries: self.queries,
            keys: self.keys,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            windows: self.windows,
            changes: changes.ok_or_else(|| format!("changes {:?}", self.changes))?,
        };
        let found = candidates().enumerate().find(|(_, spec)| spec.name == self.kernel);
        let (candidate, spec) = found.ok_or("this build has no such kernel")?;
        class.check(spec, self.splits)?;
        let division = Division { candidate, splits: self.splits };
        Ok((TunedShape { class, kernel: self.kernel, splits: self.splits }, division))
    }
}

impl Tuned {
    /// Creates the contents of a tuned file from measurements on `device`.
    ///
    /// # Errors
    /// Returns an error if an entry is invalid for this build, or if a class of shapes occurs twice.
    pub fn new(device: &DeviceInfo, shapes: Vec<TunedShape>) -> Result<Tuned, PlanError> {
        let entries = shapes.into_iter().map(|TunedShape { class, kernel, splits }| Entry {
            dtype: class.dtype.name().to_owned(),
            heads: class.heads,
            kv_heads: class.kv_heads,
            queries: class.queries,
            keys: class.keys,
            head_dim: class.head_dim,
            value_dim: class.value_dim,
            windows: class.windows,
            changes: class.changes.names().map(str::to_owned).collect(),
            half_scores: class.half_scores,
            kernel,
            splits,
        });
        Ok(Tuned { device: Device::of(device), shapes: checked(entries)? })
    }

    /// Parses the text of a tuned file.
    ///
    /// # Errors
    /// Returns an error if the text is not a tuned file or is truncated, if an entry is invalid for this build, or if a
    /// class of shapes occurs twice.
    pub fn parse(text: &str) -> Result<Tuned, PlanError> {
        let fault = |found: String| PlanError::TunedFormat(found);
        let document: Document = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|at| text.get(..at.start).unwrap_or(text).lines().count().max(1));
            let line = line.map_or(String::new(), |line| format!("line {line}: "));
            let told = e.message().replace(char::is_control, " ");
            fault(format!("{line}{told}"))
        })?;
        if document.format != FORMAT {
            return Err(fault(format!("format {}, not {FORMAT}", document.format)));
        }
        if document.end.shapes != document.shape.len() {
            let (found, told) = (document.shape.len(), document.end.shapes);
            return Err(fault(format!("{found} shapes; the [end] table says {told}")));
        }
        Ok(Tuned { device: document.device, shapes: checked(document.shape)? })
    }

    /// Reads a tuned file for `device`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if it is longer than a mebibyte, if it is not valid, or if it was
    /// measured on another device, with another driver, or with another version of this library.
    pub fn load(path: &Path, device: &DeviceInfo) -> Result<Tuned, PlanError> {
        let read = |e: io::Error| PlanError::TunedRead(e.to_string());
        let metadata = fs::metadata(path).map_err(read)?;
        if !metadata.is_file() {
            return Err(PlanError::TunedRead("not a file".into()));
        }
        if metadata.len() > LARGEST {
            return Err(PlanError::TunedFormat(format!(
                "{} bytes, and at most {LARGEST} are read",
                metadata.len()
            )));
        }
        // The number of bytes read is limited as well: system files report a size that is too small, and the file may
        // have been replaced.
        let mut text = String::new();
        File::open(path).map_err(read)?.take(LARGEST).read_to_string(&mut text).map_err(read)?;
        let tuned = Tuned::parse(&text)?;
        tuned.device.check(&Device::of(device))?;
        Ok(tuned)
    }

    /// Returns the path of [`Tuning::Standard`]: `elsa/tuned.toml` in the folder `XDG_CONFIG_HOME`, or in `.config` in
    /// the home folder. `None` if the environment names neither folder.
    #[must_use]
    pub fn standard_path() -> Option<PathBuf> {
        let folder = |name| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
        config.map(|config| config.join(STANDARD))
    }

    /// Returns the path in the environment variable `ELSA_TUNED`; `None` if the variable is unset or empty.
    #[must_use]
    pub fn named_path() -> Option<PathBuf> {
        env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        let d = &self.device;
        let mut text = format!(
            "# Written by elsa tune: the fastest kernels and divisions of the keys on one GPU.\nformat = {FORMAT}\n\n\
             [device]\nname = {}\ncapability = {}\nsms = {}\ndriver = {}\nlibrary = {}\n",
            quoted(&d.name),
            quoted(&d.capability),
            d.sms,
            quoted(&d.driver),
            quoted(&d.library)
        );
        for (TunedShape { class: c, kernel, splits }, _) in &self.shapes {
            let changes: Vec<String> = c.changes.names().map(quoted).collect();
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n[[shape]]\ndtype = {}\nheads = {}\nkv_heads = {}\nqueries = {}\nkeys = {}\nhead_dim = {}\n\
                 value_dim = {}\nwindows = {}\nchanges = [{}]\nhalf_scores = {}\nkernel = {}\nsplits = {splits}\n",
                quoted(c.dtype.name()),
                c.heads,
                c.kv_heads,
                c.queries,
                c.keys,
                c.head_dim,
                c.value_dim,
                c.windows,
                changes.join(", "),
                c.half_scores,
                quoted(kernel)
            );
        }
        let _ = write!(text, "\n[end]\nshapes = {}\n", self.shapes.len());
        text
    }

    /// Iterates over the measured classes of shapes.
    pub fn shapes(&self) -> impl ExactSizeIterator<Item = &TunedShape> {
        self.shapes.iter().map(|(shape, _)| shape)
    }

    /// Returns the measured division for the class of a problem, if the file has this class.
    pub(crate) fn division(&self, problem: &Problem, half_scores: bool) -> Option<Division> {
        let class = ShapeClass::of(problem, half_scores)?;
        self.shapes.iter().find(|(shape, _)| shape.class == class).map(|(_, division)| *division)
    }
}

/// Checks that each entry is valid and that no class of shapes occurs twice.
fn checked(entries: impl IntoIterator<Item = Entry>) -> Result<Vec<(TunedShape, Division)>, PlanError> {
    let mut shapes: Vec<(TunedShape, Division)> = Vec::new();
    for (at, entry) in entries.into_iter().enumerate() {
        let (kernel, splits) = (entry.kernel.clone(), entry.splits);
        let refused = |reason| PlanError::TunedEntry { number: at + 1, kernel, splits, reason };
        match entry.checked() {
            Ok((shape, _)) if shapes.iter().any(|(other, _)| other.class == shape.class) => {
                return Err(refused("a shape before it is the same".into()));
            }
            Ok(shape) => shapes.push(shape),
            Err(reason) => return Err(refused(reason)),
        }
    }
    Ok(shapes)
}

/// Quotes a string in TOML syntax.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

impl Tuning {
    /// Returns the selected file, with its contents if they are valid for `device`; `None` if no file is selected. Logs
    /// a warning if the file is not used.
    pub(crate) fn open(&self, device: &DeviceInfo) -> Option<TunedFile> {
        let named = match self {
            Tuning::Off => return None,
            Tuning::Environment => Some(Tuned::named_path()?),
            Tuning::Standard => Tuned::standard_path(),
            Tuning::File(path) => Some(path.clone()),
        };
        let contents = match &named {
            Some(path) => Tuned::load(path, device),
            None => Err(PlanError::TunedNoFolder),
        };
        let path = named.unwrap_or_else(|| PathBuf::from(STANDARD));
        match &contents {
            Ok(tuned) => log::debug!("{}: {} tuned shapes", path.display(), tuned.shapes.len()),
            Err(e) => log::warn!("tuned: {}: {e}; the chooser decides", path.display()),
        }
        Some(TunedFile { path, contents })
    }
}

#[cfg(test)]
mod tests;
