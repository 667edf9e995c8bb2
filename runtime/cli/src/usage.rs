//! Formats errors in the command line as one line: the argument, its value, the allowed values, and a suggestion.

use crate::args::{FILE, FILE_IS};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::any::TypeId;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the message for `error`, which the parser of `root` found in `arguments`. The first of `arguments` is the
/// program's name.
pub fn line(error: &clap::Error, mut root: Command, arguments: &[OsString]) -> String {
    root.build();
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let verb = Verb::of(&root, &words);
    let argument = strings(error, ContextKind::InvalidArg);
    let flag = argument.first().map_or("", |argument| name(argument));
    let value = strings(error, ContextKind::InvalidValue).first().copied().unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let found = strings(error, ContextKind::InvalidSubcommand).first().copied().unwrap_or_default();
            // If the word is a flag without its dashes, the flag is suggested, not a command with similar letters.
            let flag = format!("--{found}");
            let near = match of(&root, &flag) {
                Some(_) => Some(flag.as_str()),
                None => strings(error, ContextKind::SuggestedSubcommand).first().copied(),
            };
            let group = verb.as_ref().map(|verb| verb.command);
            let group = group.filter(|group| group.has_subcommands() && group.get_name() != "help");
            let verbs: Vec<&str> = group.unwrap_or(&root).get_subcommands().map(Command::get_name).collect();
            format!("command: '{found}'; allowed: {}{}", verbs.join(", "), meant(near))
        }
        ErrorKind::UnknownArgument => unknown(&root, &words, verb.as_ref(), flag, error),
        ErrorKind::MissingRequiredArgument if forgot_task(&words) => {
            "--task: missing; allowed: I/N, task I of the N tasks of --quorum, or --task-path".to_owned()
        }
        ErrorKind::MissingRequiredArgument => {
            let flags: Vec<&str> = argument.iter().map(|argument| name(argument)).collect();
            let usage = usage(error);
            let files = if usage.contains(FILE) { format!("; {FILE} is {FILE_IS}") } else { String::new() };
            format!("{}: missing; allowed: {usage}{files}", flags.join(", "))
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if !flag.is_empty() => {
            let found = if value.is_empty() { "no value".to_owned() } else { format!("'{value}'") };
            let values = strings(error, ContextKind::ValidValue);
            let allowed = match error.source().map(ToString::to_string) {
                Some(allowed) if allowed.starts_with("allowed: ") => format!("; {allowed}"),
                Some(reason) => format!(": {reason}"),
                None if values.is_empty() => format!("; allowed: {}", argument.join(" ")),
                None => format!("; allowed: {}", values.join(", ")),
            };
            let near = strings(error, ContextKind::SuggestedValue);
            format!("{flag}: {found}{allowed}{}", meant(near.first().copied()))
        }
        ErrorKind::ArgumentConflict => {
            let prior = strings(error, ContextKind::PriorArg);
            match prior.first().map(|prior| name(prior)) {
                Some(prior) if prior != flag => {
                    format!("{flag}: given with {prior}; allowed: one of the two")
                }
                _ => format!("{flag}: given twice; allowed: once"),
            }
        }
        ErrorKind::TooManyValues => format!("{flag}: '{value}'; allowed: {flag} without a value"),
        ErrorKind::InvalidUtf8 => not_text(&root, arguments, &words, verb.as_ref()),
        // The first paragraph of the parser's message; the tips and the usage that follow are left out.
        _ => {
            let text = error.render().to_string();
            let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            let line = lines.join(" ");
            line.strip_prefix("error: ").unwrap_or(&line).to_owned()
        }
    }
}

/// A command that is named in the command line.
struct Verb<'a> {
    command: &'a Command,
    /// Name of the command without the name of the tool, such as `run` or `linear run`.
    name: String,
    /// Index of the last word of the name in the command line.
    at: usize,
}

impl<'a> Verb<'a> {
    /// Returns the innermost command that `words` name; `None` if they name no command.
    fn of(root: &'a Command, words: &[String]) -> Option<Verb<'a>> {
        let mut found: Option<Verb<'a>> = None;
        for (at, word) in words.iter().enumerate().skip(1) {
            let (within, before) = found.as_ref().map_or((root, ""), |verb| (verb.command, &verb.name));
            let Some(command) = within.find_subcommand(word) else { continue };
            found = Some(Verb { command, name: joined(before, command.get_name()), at });
            // The subcommands of `help` are the commands of the tool, so the search stops.
            if command.get_name() == "help" {
                break;
            }
        }
        found
    }
}

/// Returns the full name of command `name` in the group `before`. The name of the group may be empty.
fn joined(before: &str, name: &str) -> String {
    if before.is_empty() { name.to_owned() } else { format!("{before} {name}") }
}

/// Searches the commands inside `within`, at any depth, for the flag `flag`. Appends the names of the commands that
/// have this flag to `found`.
fn with_flag(within: &Command, before: &str, flag: &str, found: &mut Vec<String>) {
    for command in within.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = joined(before, command.get_name());
        with_flag(command, &name, flag, found);
        if of(command, flag).is_some() {
            found.push(name);
        }
    }
}

/// Builds the message about an argument that is neither a flag of the command nor the value of a flag.
fn unknown(
    root: &Command,
    words: &[String],
    verb: Option<&Verb<'_>>,
    found: &str,
    error: &clap::Error,
) -> String {
    let at = (1..words.len()).find(|&at| {
        // For "-word" the parser names only the first letter.
        let short = found.len() == 2 && !words[at].starts_with("--");
        name(&words[at]) == found || short && words[at].starts_with(found)
    });
    let at = at.unwrap_or(words.len());
    let program = root.get_name();
    let Some(Verb { command, name: verb, .. }) = verb.filter(|verb| verb.at < at) else {
        return format!(
            "{found}: unexpected argument before the command; allowed: {program} COMMAND [OPTIONS]"
        );
    };
    let whole = words.get(at).map_or(found, |word| name(word));
    let before = words.get(at - 1).map_or("", |word| name(word));
    let bare = whole.trim_start_matches('-');
    let near = if of(command, before).is_some_and(Arg::is_require_equals_set) {
        Some(format!("{before}={whole}"))
    } else if of(command, &format!("--{bare}")).is_some() {
        Some(format!("--{bare}"))
    } else {
        strings(error, ContextKind::SuggestedArg).first().map(|near| name(near).to_owned())
    };
    let mut elsewhere = Vec::new();
    with_flag(root, "", whole, &mut elsewhere);
    elsewhere.retain(|other| other != verb);
    let elsewhere = match &elsewhere[..] {
        [] => String::new(),
        verbs => format!(", which is a flag of {program} {}", verbs.join(", ")),
    };
    let allowed = format!("what {program} {verb} --help lists");
    format!("{whole}: unexpected argument{elsewhere}; allowed: {allowed}{}", meant(near.as_deref()))
}

/// Builds the message about an argument that is not UTF-8. If the argument is the value of a flag, the message names
/// the flag.
fn not_text(root: &Command, arguments: &[OsString], words: &[String], verb: Option<&Verb<'_>>) -> String {
    let command = verb.map_or(root, |verb| verb.command);
    for (at, word) in words.iter().enumerate().skip(1) {
        if arguments[at].to_str().is_some() {
            continue;
        }
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, value),
            _ => (words[at - 1].as_str(), word.as_str()),
        };
        let takes = of(command, flag);
        // A plain path may contain any bytes.
        if takes.is_some_and(|arg| arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()) {
            continue;
        }
        let flag = takes.map_or("argument", |_| flag);
        return format!("{flag}: '{value}' is not UTF-8; allowed: UTF-8");
    }
    "argument: not UTF-8; allowed: UTF-8".to_owned()
}

/// Returns the argument of `command` that has the flag `flag`. The flag is given with two dashes.
fn of<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    let long = flag.strip_prefix("--")?;
    command.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// Returns `true` if the command line contains a flag that divides the call among boards and a flag that names the file
/// of a task, but no flag that selects a task.
fn forgot_task(words: &[String]) -> bool {
    let given = |flag: &str| {
        words
            .iter()
            .any(|word| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    };
    given("--quorum")
        && (given("--state-out") || given("--shares-out"))
        && !given("--task")
        && !given("--task-path")
}

/// Returns `--flag` for `--flag=value`, `--flag <VALUE>` and `--flag[=<VALUE>]`.
fn name(argument: &str) -> &str {
    match argument.strip_prefix('-') {
        Some(_) => argument.split([' ', '=', '[']).next().unwrap_or(argument),
        None => argument,
    }
}

fn meant(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// Returns the usage lines of the command in `error`, joined by "or".
fn usage(error: &clap::Error) -> String {
    let text = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(text)) => text.to_string(),
        _ => String::new(),
    };
    let forms: Vec<&str> = text.lines().map(|line| line.trim_start_matches("Usage:").trim()).collect();
    forms.join(", or ")
}

/// Returns the texts of kind `kind` in the context of `error`.
fn strings(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}
