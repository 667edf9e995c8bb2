//! The certificate of a run, as `elsa run` and `elsa linear run` print it.

use elsa_core::attention::run_certificate::RunCertificate;
use std::io::{Result, Write};

/// The certificate of a run, as text.
#[derive(Debug)]
pub struct Certified {
    /// The bound in one sentence, or the reason for a missing bound.
    sentence: String,
    /// The complete certificate as one line of JSON.
    json: String,
}

impl Certified {
    /// Creates the certificate of a sentence and a line of JSON. The sentence begins after `certificate: `.
    #[must_use]
    pub fn new(sentence: &str, json: String) -> Certified {
        Certified { sentence: format!("certificate: {sentence}"), json }
    }

    /// Formats the certificate of a run.
    #[must_use]
    pub fn of(certificate: &RunCertificate<'_>) -> Certified {
        let sentence = match (certificate.claim(), certificate.largest_absolute()) {
            (Ok(_), Some(most)) => {
                format!("every number of the output is proven to be within {most:.1e} of exact attention")
            }
            (Err(why), _) => format!("nothing is proven about the output; {why}"),
            (Ok(_), None) => "nothing is proven about the output".to_owned(),
        };
        Certified::new(&sentence, certificate.to_string())
    }

    /// Writes the line of JSON if `json` is set. Otherwise writes the sentence, and below it the line of JSON if
    /// `verbose` is set.
    ///
    /// # Errors
    /// Returns an error if the writer fails.
    pub fn print(&self, out: &mut impl Write, json: bool, verbose: bool) -> Result<()> {
        if !json {
            writeln!(out, "{}", self.sentence)?;
        }
        if json || verbose {
            writeln!(out, "{}", self.json)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_a_sentence_and_programs_get_json() {
        let certified = Certified::new("words", "{}".into());
        let text = |json, verbose| {
            let mut out = Vec::new();
            certified.print(&mut out, json, verbose).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            [text(false, false), text(false, true), text(true, false), text(true, true)],
            ["certificate: words\n", "certificate: words\n{}\n", "{}\n", "{}\n"]
        );
    }
}
