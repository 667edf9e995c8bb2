//! The layout of the help. `-h` fits on one screen: it shows the flags that most calls need, with one sentence each.
//! `--help` shows every flag with its complete text.

use clap::builder::{Resettable, StyledStr};
use clap::{Arg, Command};

/// Maximum width of a line of help. On a narrower terminal, lines have the width of the terminal.
const WIDTH: usize = 120;

/// If a command has at most this number of flags, `-h` shows all of them.
const FEW: usize = 12;

/// Flags that `-h` shows for commands with more than [`FEW`] flags.
const COMMON: &str = "q k v out layout heads kv_heads causal window mask kv_lens d_out dq_out dk_out dv_out states y scenario \
                      shape workload dtype seconds compare wait wide rule decay beta form backend \
                      threads budget host_budget certificate html json";

/// Gives `command` and its subcommands a short help (`-h`) and a long one (`--help`).
pub fn shaped(command: Command) -> Command {
    let few = command.get_arguments().count() <= FEW;
    let command = command.mut_args(|flag| brief(flag, few)).mut_subcommands(shaped).max_term_width(WIDTH);
    let Some(text) = command.get_after_help().map(|text| flowing(&text.to_string())) else { return command };
    let example = example(&text).map(StyledStr::from);
    command.after_help(Resettable::from(example)).after_long_help(text)
}

/// Shortens the help of `flag` to its first sentence for `-h`. `-h` hides the flag if it is neither required nor in
/// [`COMMON`] and `few` is `false`. `few` is `true` for a command with at most [`FEW`] flags.
fn brief(flag: Arg, few: bool) -> Arg {
    let shown =
        few || flag.is_required_set() || COMMON.split_whitespace().any(|common| flag.get_id() == common);
    let flag = flag.hide_short_help(!shown);
    let text = flag.get_help().map(ToString::to_string).unwrap_or_default();
    match text.split_once(". ") {
        Some((first, _)) => flag.help(first.to_owned()).long_help(text),
        None => flag,
    }
}

/// Returns the first example in `text`, which is the text below the flags.
fn example(text: &str) -> Option<String> {
    let lines = text.strip_prefix("Examples:\n")?.split_inclusive('\n');
    let count = lines.clone().take_while(|line| line.ends_with("\\\n")).count() + 1;
    Some(format!("Example:\n{}", lines.take(count).collect::<String>().trim_end()))
}

/// Joins the lines of each paragraph, so that they are wrapped at the width of the terminal. An indented line, or a
/// line that follows a colon at the end of the previous line, remains separate.
fn flowing(text: &str) -> String {
    let (mut out, mut joins) = (String::new(), false);
    for line in text.lines() {
        let flows = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if joins && flows { ' ' } else { '\n' });
        }
        out.push_str(line);
        joins = flows && !line.ends_with(':');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;
    use clap::CommandFactory;

    /// Width of the terminal for which the help texts are written, in columns.
    const COLUMNS: usize = 100;
    /// Height of a screen, in lines.
    const SCREEN: usize = 40;

    /// Calls `check` with every command and its full name.
    fn each(command: &mut Command, name: &str, check: &mut dyn FnMut(&str, &mut Command)) {
        check(name, command);
        for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
            each(inner, &format!("{name} {}", inner.get_name()), check);
        }
    }

    fn built() -> Command {
        let mut root = shaped(Cli::command()).term_width(COLUMNS);
        root.build();
        root
    }

    #[test]
    fn short_help_is_one_screen() {
        each(&mut built(), "elsa", &mut |name, command| {
            let text = command.render_help().to_string();
            assert!(text.lines().count() <= SCREEN, "{name}: {} lines\n{text}", text.lines().count());
        });
    }

    #[test]
    fn long_help_has_every_flag_and_breaks_no_line_of_a_list() {
        each(&mut built(), "elsa", &mut |name, command| {
            let text = command.render_long_help().to_string();
            for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
                if let Some(long) = flag.get_long() {
                    assert!(text.contains(&format!("--{long}")), "{name}: --{long} is missing");
                }
            }
            let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for line in after.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= COLUMNS, "{name}: more than {COLUMNS} columns: {line}");
            }
        });
    }

    #[test]
    fn flags_are_in_the_groups_that_their_headings_name() {
        let groups = [
            ("Problem", &["q", "causal", "mask", "shift"][..]),
            ("Division among boards", &["quorum", "task", "tokens"]),
            ("Engine and plan", &["backend", "threads", "tuned"]),
            ("Schedules", &["schedule", "norm_gate"]),
            ("Streaming", &["host_budget", "resume"]),
        ];
        each(&mut built(), "elsa", &mut |name, command| {
            for flag in command.get_arguments() {
                let heading = flag.get_help_heading();
                // Flags that belong to a command itself, and not to a shared group, have no heading.
                let own = ["json", "force", "certificate", "html", "out", "save", "y"];
                assert!(heading.is_none() || !own.contains(&flag.get_id().as_str()), "{name}: {flag}");
                for (group, flags) in groups {
                    if flags.contains(&flag.get_id().as_str()) && name == "elsa run" {
                        assert_eq!(heading, Some(group), "{name}: {flag}");
                    }
                }
            }
        });
    }

    #[test]
    fn paragraphs_flow_and_lists_stay() {
        assert_eq!(flowing("a\nb\n\nc:\n  d\n  e\nf"), "a b\n\nc:\n  d\n  e\nf");
        assert_eq!(example("Examples:\n  a \\\n    b\n  c\nd").as_deref(), Some("Example:\n  a \\\n    b"));
        assert_eq!(example("text"), None);
    }
}
