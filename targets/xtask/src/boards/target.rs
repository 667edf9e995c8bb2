//! Targets of a build: a board, any x86-64 machine, or this machine.

use crate::setup;
use crate::shell::Tree;
use elsa_targets::{Board, Build};
use object::Architecture;
use std::path::PathBuf;

/// Name of the target that stands for the machine on which the build runs.
pub const HOST: &str = "host";
/// Name of the target that stands for every x86-64 machine with the boards' C library or a later one.
pub const X86_64: &str = "x86-64";

/// Target of a build.
pub enum Target {
    /// This machine, with its triple.
    Host(String),
    /// A board.
    Board(Box<Board>),
    /// Every x86-64 machine with the boards' C library or a later one.
    Desktop(Build),
}

impl Target {
    /// Returns the names that `--target` accepts.
    pub fn names() -> Vec<&'static str> {
        elsa_targets::NAMES.into_iter().chain([X86_64, HOST]).collect()
    }

    /// Returns the target with this name.
    pub fn named(tree: &Tree, name: &str) -> Result<Target, String> {
        if name == HOST {
            return setup::host(tree).map(Target::Host);
        }
        if name == X86_64 {
            let triple = "x86_64-unknown-linux-gnu".to_owned();
            let (machine, isa) = ("x86_64".to_owned(), X86_64.to_owned());
            return Ok(Target::Desktop(Build { triple, machine, isa, ..setup::reference()?.build }));
        }
        Board::named(name).map(Box::new).map(Target::Board).map_err(|error| error.to_string())
    }

    /// Returns the name of the target.
    pub fn name(&self) -> &str {
        match self {
            Target::Host(_) => HOST,
            Target::Board(board) => &board.name,
            Target::Desktop(_) => X86_64,
        }
    }

    /// Returns the settings of a build that zig links; `None` if this machine's linker does.
    pub fn build(&self) -> Option<&Build> {
        match self {
            Target::Host(_) => None,
            Target::Board(board) => Some(&board.build),
            Target::Desktop(build) => Some(build),
        }
    }

    /// Returns Rust's target triple.
    pub fn triple(&self) -> &str {
        match self {
            Target::Host(triple) => triple,
            Target::Board(board) => &board.build.triple,
            Target::Desktop(build) => &build.triple,
        }
    }

    /// Returns the output of `uname -m` on the target.
    pub fn machine(&self) -> &str {
        match self {
            Target::Host(triple) => triple.split('-').next().unwrap_or_default(),
            Target::Board(board) => &board.build.machine,
            Target::Desktop(build) => &build.machine,
        }
    }

    /// Returns the processor architecture of programs for the target.
    pub fn architecture(&self) -> Architecture {
        match self.machine() {
            "aarch64" => Architecture::Aarch64,
            _ => Architecture::X86_64,
        }
    }

    /// Returns the folder of the target's profile and settings in the tree.
    pub fn folder(&self, tree: &Tree) -> PathBuf {
        tree.root.join("targets").join(self.name())
    }

    /// Returns the folder that is shipped for the target.
    pub fn dist(&self, tree: &Tree) -> PathBuf {
        tree.target.join("dist").join(self.name())
    }
}
