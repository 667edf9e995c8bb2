//! What a run is of, and the journal of an earlier one that it goes on with.

use super::journal::{Earlier, Journal, Sizes};
use super::sink::{Outputs, journal_of};
use crate::error::{Error, say};
use crate::job::Job;
use crate::tensor::output::Prepared;
use std::path::PathBuf;

/// A run whose journal has been looked for.
#[derive(Debug)]
pub struct Begun {
    /// Where the journal is; `None` if none is kept.
    path: Option<PathBuf>,
    /// Problem, kernel, inputs and outputs, a line for each.
    run: Vec<String>,
    earlier: Option<(Journal, Earlier)>,
}

impl Begun {
    /// A run of `job` whose outputs are `prepared`, computed by what `by` says. `resume` has a journal kept.
    ///
    /// # Errors
    /// A journal of another run, or a damaged one; what the file system reports.
    pub fn new(job: &Job, prepared: &[Prepared], resume: bool, by: &str) -> Result<Begun, Error> {
        let mut run = job.stamps();
        run.push(format!("{:?}", job.problem.spec()));
        run.push(by.to_owned());
        run.extend(prepared.iter().map(Prepared::describe));
        let path = prepared.first().filter(|_| resume).map(|file| journal_of(&file.path));
        let earlier = match &path {
            Some(path) => Journal::open(path, &run)?,
            None => None,
        };
        Ok(Begun { path, run, earlier })
    }

    /// Whether outputs stay after a kill, and whether they are there already.
    #[must_use]
    pub fn resumes(&self) -> Option<bool> {
        self.path.is_some().then_some(self.earlier.is_some())
    }

    /// Sizes of the earlier run.
    #[must_use]
    pub fn sizes(&self) -> Option<Sizes> {
        self.earlier.as_ref().map(|(_, earlier)| earlier.sizes)
    }

    /// Units that the earlier run has finished.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.earlier.as_ref().map_or(0, |(_, earlier)| earlier.finished)
    }

    /// Has `outputs` take notes of a run of `units` units, in the earlier journal or a new one.
    ///
    /// # Errors
    /// A journal of more units; what the file system reports.
    pub fn note_in(self, outputs: &mut Outputs, sizes: Sizes, units: usize) -> Result<(), Error> {
        let from = self.finished();
        if from > units {
            let found = format!("{from} finished units of {units}");
            return Err(Error::Argument {
                argument: "resume",
                found,
                allowed: "the journal of this run".into(),
            });
        }
        match (self.earlier, &self.path) {
            (Some((journal, _)), _) => {
                say(&format!("goes on after {from} of {units} units"));
                outputs.note_in(journal);
            }
            (None, Some(path)) => outputs.note_in(Journal::begin(path, sizes, self.run)?),
            (None, None) => {}
        }
        Ok(())
    }
}
