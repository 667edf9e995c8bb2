//! Tuned files: the fastest kernels and divisions that `elsa tune` measured on a GPU or a CPU.
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
//! The file of a CPU has a table `[cpu]` in place of `[device]`, and its shapes have other decisions in place of
//! `splits`:
//!
//! ```toml
//! [cpu]
//! set = "neon"
//! cores = 4
//! l1d = 32768
//! l2 = 2097152
//! l3 = 0
//! library = "0.1.0"
//! [[shape]]
//! # The class as above.
//! kernel = "attention_f32_q48k8__neon_exp2_floor_p5"
//! block = 128
//! group = 4
//! workers = 4
//! ```
//!
//! A file is used only if all of it is valid for this device and library; otherwise the complete file is rejected.

use crate::cuda::gpu::DeviceInfo;
use crate::error::PlanError;
use elsa_core::attention::Problem;
use elsa_core::attention::plan::{Changes, CpuDivision, Division, GpuKernelSpec, ShapeClass};
use elsa_core::dtype::DType;
use elsa_core::profile::{DeviceProfile, InstructionSet};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};
use elsa_kernels::registry;
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

/// The fastest decisions for a class of shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedShape {
    /// The class of shapes.
    pub class: ShapeClass,
    /// Name of the kernel.
    pub kernel: String,
    /// Number of splits into which the keys are divided; 1 on a CPU.
    pub splits: usize,
    /// Decisions about a CPU; `None` on a GPU.
    pub cpu: Option<CpuDivision>,
}

/// The contents of a tuned file. All entries are valid for this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    measured: Measured,
    /// The shapes, each with the index of its kernel among the candidates.
    shapes: Vec<(TunedShape, usize)>,
}

/// The device on which a file was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Measured {
    Gpu(Device),
    Cpu(Processor),
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
pub(crate) struct Device {
    name: String,
    capability: String,
    sms: usize,
    driver: String,
    library: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Processor {
    set: String,
    cores: usize,
    l1d: usize,
    l2: usize,
    l3: usize,
    library: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    device: Option<Device>,
    cpu: Option<Processor>,
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
    splits: Option<usize>,
    block: Option<usize>,
    group: Option<usize>,
    workers: Option<usize>,
}

impl Measured {
    /// Describes a GPU.
    pub(crate) fn gpu(info: &DeviceInfo) -> Measured {
        let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        Measured::Gpu(Device {
            name: info.name.clone(),
            capability: version(info.profile.capability),
            sms: info.profile.sms,
            driver: version(info.driver),
            library: VERSION.to_owned(),
        })
    }

    /// Describes a CPU that computes with the instruction set `set`.
    pub(crate) fn cpu(set: InstructionSet, profile: &DeviceProfile) -> Measured {
        let DeviceProfile { l1d, l2, l3, .. } = *profile;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (set, library) = (set.name().to_owned(), VERSION.to_owned());
        Measured::Cpu(Processor { set, cores, l1d, l2, l3, library })
    }

    /// Lists the properties that must be equal for a file to be used, with their names.
    fn facts(&self) -> [(&'static str, String); 6] {
        match self {
            Measured::Gpu(d) => [
                ("a kind of device:", "GPU".to_owned()),
                ("device", d.name.clone()),
                ("compute capability", d.capability.clone()),
                ("a number of SMs of", d.sms.to_string()),
                ("driver", d.driver.clone()),
                ("library", d.library.clone()),
            ],
            Measured::Cpu(c) => [
                ("a kind of device:", "CPU".to_owned()),
                ("instruction set", c.set.clone()),
                ("a number of cores of", c.cores.to_string()),
                ("caches of", format!("{} and {}", c.l1d, c.l2)),
                ("a last cache of", c.l3.to_string()),
                ("library", c.library.clone()),
            ],
        }
    }

    /// Checks that the device, its driver and the library version equal those of `other`.
    fn check(&self, other: &Measured) -> Result<(), PlanError> {
        for ((what, found), (_, allowed)) in self.facts().into_iter().zip(other.facts()) {
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
    /// Creates the entry of a shape.
    fn of(shape: TunedShape) -> Entry {
        let TunedShape { class, kernel, splits, cpu } = shape;
        Entry {
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
            splits: cpu.is_none().then_some(splits),
            block: cpu.map(|cpu| cpu.block),
            group: cpu.map(|cpu| cpu.group),
            workers: cpu.map(|cpu| cpu.workers),
        }
    }

    /// Checks the entry of a file that was measured on `measured`. Returns its shape, and the index of its kernel among
    /// the candidates.
    fn checked(self, measured: &Measured) -> Result<(TunedShape, usize), String> {
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
        const NO_KERNEL: &str = "this build has no such kernel";
        let Entry { kernel, splits, block, group, workers, .. } = self;
        match (measured, splits, block.zip(group).zip(workers)) {
            (Measured::Gpu(_), Some(splits), None) if (block, group, workers) == (None, None, None) => {
                let found = candidates().enumerate().find(|(_, spec)| spec.name == kernel);
                let (candidate, spec) = found.ok_or(NO_KERNEL)?;
                class.check(spec, splits)?;
                Ok((TunedShape { class, kernel, splits, cpu: None }, candidate))
            }
            (Measured::Cpu(cpu), None, Some(((block, group), workers))) => {
                let set = InstructionSet::ALL.into_iter().find(|set| set.name() == cpu.set);
                let set = set.ok_or_else(|| format!("instruction set {:?}", cpu.set))?;
                let named = |kernel: &str| {
                    registry::attention_of(set).position(|candidate| candidate.spec.name == kernel)
                };
                let candidate = named(&kernel).ok_or(NO_KERNEL)?;
                let division = CpuDivision { block, group, workers };
                class.check_cpu(&division)?;
                Ok((TunedShape { class, kernel, splits: 1, cpu: Some(division) }, candidate))
            }
            (Measured::Gpu(_), ..) => Err("not splits alone".to_owned()),
            (Measured::Cpu(_), ..) => Err("not block, group and workers alone".to_owned()),
        }
    }
}

impl Tuned {
    /// Creates the contents of a tuned file from measurements on `device`.
    ///
    /// # Errors
    /// Returns an error if an entry is invalid for this build, or if a class of shapes occurs twice.
    pub fn new(device: &DeviceInfo, shapes: Vec<TunedShape>) -> Result<Tuned, PlanError> {
        Tuned::of(Measured::gpu(device), shapes)
    }

    /// Creates the contents of a tuned file from measurements on a CPU that computes with the instruction set `set`.
    /// `profile` is that of the engine.
    ///
    /// # Errors
    /// Returns an error if an entry is invalid for this build, or if a class of shapes occurs twice.
    pub fn on_cpu(
        set: InstructionSet,
        profile: &DeviceProfile,
        shapes: Vec<TunedShape>,
    ) -> Result<Tuned, PlanError> {
        Tuned::of(Measured::cpu(set, profile), shapes)
    }

    /// Creates the contents of a tuned file from measurements on `measured`.
    fn of(measured: Measured, shapes: Vec<TunedShape>) -> Result<Tuned, PlanError> {
        let shapes = checked(shapes.into_iter().map(Entry::of), &measured)?;
        Ok(Tuned { measured, shapes })
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
        let measured = match (document.device, document.cpu) {
            (Some(device), None) => Measured::Gpu(device),
            (None, Some(cpu)) => Measured::Cpu(cpu),
            _ => return Err(fault("not exactly one of the tables [device] and [cpu]".into())),
        };
        let shapes = checked(document.shape, &measured)?;
        Ok(Tuned { measured, shapes })
    }

    /// Reads a tuned file for `device`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if it is longer than a mebibyte, if it is not valid, or if it was
    /// measured on another device, with another driver, or with another version of this library.
    pub fn load(path: &Path, device: &DeviceInfo) -> Result<Tuned, PlanError> {
        Tuned::read(path, &Measured::gpu(device))
    }

    /// Reads a tuned file for the device `wanted`, like [`Tuned::load`].
    fn read(path: &Path, wanted: &Measured) -> Result<Tuned, PlanError> {
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
        tuned.measured.check(wanted)?;
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
        let mut text =
            format!("# Written by elsa tune: the fastest decisions for one device.\nformat = {FORMAT}\n\n");
        // Writing to a string does not fail.
        let _ = match &self.measured {
            Measured::Gpu(d) => write!(
                text,
                "[device]\nname = {}\ncapability = {}\nsms = {}\ndriver = {}\nlibrary = {}\n",
                quoted(&d.name),
                quoted(&d.capability),
                d.sms,
                quoted(&d.driver),
                quoted(&d.library)
            ),
            Measured::Cpu(Processor { set, cores, l1d, l2, l3, library }) => write!(
                text,
                "[cpu]\nset = {}\ncores = {cores}\nl1d = {l1d}\nl2 = {l2}\nl3 = {l3}\nlibrary = {}\n",
                quoted(set),
                quoted(library)
            ),
        };
        for (TunedShape { class: c, kernel, splits, cpu }, _) in &self.shapes {
            let changes: Vec<String> = c.changes.names().map(quoted).collect();
            let _ = write!(
                text,
                "\n[[shape]]\ndtype = {}\nheads = {}\nkv_heads = {}\nqueries = {}\nkeys = {}\nhead_dim = {}\n\
                 value_dim = {}\nwindows = {}\nchanges = [{}]\nhalf_scores = {}\nkernel = {}\n",
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
            let _ = match cpu {
                None => writeln!(text, "splits = {splits}"),
                Some(CpuDivision { block, group, workers }) => {
                    writeln!(text, "block = {block}\ngroup = {group}\nworkers = {workers}")
                }
            };
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
        let (shape, candidate) = self.shape(problem, half_scores)?;
        shape.cpu.is_none().then_some(Division { candidate: *candidate, splits: shape.splits })
    }

    /// Returns the measured decisions about a CPU for the class of a problem, if the file has this class.
    pub(crate) fn cpu_division(&self, problem: &Problem) -> Option<CpuDivision> {
        self.shape(problem, false)?.0.cpu
    }

    /// Returns the entry for the class of a problem.
    fn shape(&self, problem: &Problem, half_scores: bool) -> Option<&(TunedShape, usize)> {
        let class = ShapeClass::of(problem, half_scores)?;
        self.shapes.iter().find(|(shape, _)| shape.class == class)
    }
}

/// Checks that each entry is valid for a file that was measured on `measured`, and that no class of shapes occurs
/// twice.
fn checked(
    entries: impl IntoIterator<Item = Entry>,
    measured: &Measured,
) -> Result<Vec<(TunedShape, usize)>, PlanError> {
    let mut shapes: Vec<(TunedShape, usize)> = Vec::new();
    for (at, entry) in entries.into_iter().enumerate() {
        let (kernel, splits) = (entry.kernel.clone(), entry.splits.unwrap_or(1));
        let refused = |reason| PlanError::TunedEntry { number: at + 1, kernel, splits, reason };
        match entry.checked(measured) {
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
    pub(crate) fn open(&self, device: &Measured) -> Option<TunedFile> {
        let named = match self {
            Tuning::Off => return None,
            Tuning::Environment => Some(Tuned::named_path()?),
            Tuning::Standard => Tuned::standard_path(),
            Tuning::File(path) => Some(path.clone()),
        };
        let contents = match &named {
            Some(path) => Tuned::read(path, device),
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
