//! The plan of a run on a CPU, as data: the chooser, its choice, and the layout of the workspace.

mod choice;
mod choose;
mod kernel;
mod layout;
mod options;
mod strips;

pub use choice::{Choice, Staged};
pub use choose::{choose, crossover};
pub use kernel::{KernelSpec, LONG_PASS};
pub use layout::{Element, Layout, Rooms, WorkerSpans};
pub use options::{CHUNK_STEP, ChooseError, MOST_CHUNK, MOST_PARTS, Options};
pub use strips::{StripColumns, Strips};
