//! The plan of a run on a CPU, as data: the chooser, its choice, and the layout of the workspace.

mod choice;
mod choose;
mod crossovers;
mod kernel;
mod layout;
mod options;
mod strips;

pub use choice::{Choice, Staged};
pub use choose::choose;
pub use crossovers::{ChunksFrom, Crossovers};
pub use kernel::{KernelSpec, LONG_PASS};
pub use layout::{Element, Rooms, WorkerSpans, WorkspaceLayout};
pub use options::{CHUNK_STEP, MOST_CHUNK, MOST_PARTS, Options};
pub use strips::{StripColumns, Strips};
