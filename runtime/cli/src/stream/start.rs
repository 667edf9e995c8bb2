//! The identity of a run, and the search for the journal of an earlier run. A run that finds such a journal resumes the
//! earlier run.

use super::commit::{Move, journal_of};
use super::journal::{self, Earlier, Journal, Sizes, Stage};
use super::sink::Outputs;
use crate::error::{Error, dashed, one_line, say};
use crate::job::Job;
use elsa_files::{FileError, Prepared};
use std::fs;
use std::path::{Path, PathBuf};

/// A run that is about to start, with the journal of an earlier run if one was found.
#[derive(Debug)]
pub struct StreamStart {
    /// Path of the journal; `None` if the run keeps no journal.
    path: Option<PathBuf>,
    /// Lines that identify the run: inputs, problem, kernel and outputs.
    run: Vec<String>,
    earlier: Option<(Journal, Earlier)>,
}

impl StreamStart {
    /// Begins a run of `job` with the outputs `prepared`. `by` describes the back end that computes. If `resume` is
    /// set, the run keeps a journal.
    ///
    /// # Errors
    /// Returns an error if the journal belongs to another run or is damaged, or if the file system fails. Also returns
    /// an error if an output would replace an input file, because a resumed run still needs this file.
    pub fn new(job: &Job, prepared: &[Prepared], resume: bool, by: &str) -> Result<StreamStart, Error> {
        let mut run = job.stamps();
        run.push(format!("{:?}", job.problem.spec()));
        run.push(by.to_owned());
        let path = prepared.first().filter(|_| resume).map(|file| journal_of(&file.path));
        let Some(journal) = path.clone() else { return Ok(StreamStart { path, run, earlier: None }) };
        let moves: Vec<Move> = prepared.iter().map(Move::of).collect();
        for (file, of) in prepared.iter().zip(&moves) {
            let outputs = std::iter::once(file.path.clone()).filter(|_| file.direct.is_none());
            outputs.chain(of.parts()).try_for_each(|path| spare(job, file.argument, &path))?;
        }
        spare(job, "resume", &journal)?;
        let lines = prepared.iter().map(Prepared::describe);
        let Some((found, earlier)) = Journal::open(&journal)? else {
            run.extend(lines.map(|(line, over)| line + &over));
            return Ok(StreamStart { path, run, earlier: None });
        };
        // For each file: `true` if it has already replaced its target, `false` if it is still a part file, `None` if it
        // is at neither path.
        let done: Vec<Option<bool>> = match &earlier.commit {
            Some(parts) if parts.len() == moves.len() => {
                moves.iter().zip(parts).map(|(of, part)| of.is_done(part)).collect()
            }
            Some(_) => vec![None; moves.len()],
            None => vec![Some(false); moves.len()],
        };
        let mut known = run.clone();
        for ((line, over), done) in lines.zip(&done) {
            // If the file has been moved, the description of the file that it replaced is only in the earlier journal.
            let was = earlier.run.iter().filter(|_| *done != Some(false)).find(|known| {
                known.strip_prefix(&line).is_some_and(|rest| rest.is_empty() || rest.starts_with(" over "))
            });
            run.push(line + &over);
            known.push(was.or(run.last()).cloned().unwrap_or_default());
        }
        journal::same(&journal, &earlier, &known)?;
        if done.contains(&None) {
            say(&one_line(&format!(
                "--resume: {}: an output of it is gone; the run begins anew",
                journal.display()
            )));
            found.remove().map_err(|source| FileError::Write {
                argument: "resume",
                path: journal,
                source,
            })?;
            return Ok(StreamStart { path, run, earlier: None });
        }
        let (run, earlier) = (known, Some((found, earlier)));
        Ok(StreamStart { path, run, earlier })
    }

    /// Returns the stage at which the run starts; `None` if the run keeps no journal.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.path.as_ref().map(|_| match &self.earlier {
            None => Stage::New,
            Some((_, Earlier { commit: None, .. })) => Stage::Begun,
            Some(_) => Stage::Complete,
        })
    }

    /// Returns the sizes of units and chunks that the earlier run chose; `None` without an earlier run.
    #[must_use]
    pub fn sizes(&self) -> Option<Sizes> {
        self.earlier.as_ref().map(|(_, earlier)| earlier.sizes)
    }

    /// Returns the number of units that the earlier run has finished; zero without an earlier run.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.earlier.as_ref().map_or(0, |(_, earlier)| earlier.finished)
    }

    /// Makes `outputs` record a run of `units` units in a journal. If an earlier run left a journal, the record
    /// continues in that journal; otherwise a new journal is created. Has no effect if the run keeps no journal.
    ///
    /// # Errors
    /// Returns an error if the journal has more finished units than `units`, or if the file system fails.
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

/// Returns an error if the file at `path` is an input file of the job.
fn spare(job: &Job, argument: &'static str, path: &Path) -> Result<(), Error> {
    let Some(other) = fs::metadata(path).ok().and_then(|found| job.reads(&found)) else { return Ok(()) };
    let found = format!("{}, which {} reads", path.display(), dashed(other));
    let allowed = "with --resume another file: a run that goes on reads its inputs as they were".into();
    Err(Error::Argument { argument, found, allowed })
}
