//! Tests that untrusted names and texts never control a terminal, forge a line or hide text. Every command and every
//! flag is tested.

use crate::common::Desk;
use clap::{Arg, Command as Verb, CommandFactory};
use elsa_cli::command::Cli;
use std::process::{Command, Output, Stdio};

/// Text with control characters that clear the screen, begin a line, set a colour or reverse the direction of text, and
/// with invisible characters.
const HOSTILE: &str = "a\u{1b}[2J\nforged \u{9b}31m\u{202e}\u{2066}\u{200b}\u{7f}\r";

/// Requires that no control character and no invisible character was printed, and that the hostile text did not begin a
/// line.
fn require_clean(what: &str, output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        let hidden = |c: char| {
            c.is_control() && c != '\n' || ('\u{200b}'..='\u{202e}').contains(&c) || c == '\u{2066}'
        };
        assert!(!text.contains(hidden), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("forged")), "{what}: {text:?}");
    }
    assert_ne!(output.status.code(), None, "{what}");
}

/// Runs the tool with these arguments, and with the hostile text as the value of each environment variable in
/// `variables`.
fn ran(arguments: &[&str], variables: &[&str]) -> Output {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_elsa"));
    tool.args(arguments).stdin(Stdio::null()).env("ELSA_LOG", "debug");
    for variable in variables {
        tool.env(variable, HOSTILE);
    }
    tool.output().unwrap()
}

/// Calls `each` for every command of the tool, including nested ones. `each` receives the words of the command's name,
/// and the command.
fn verbs<'a>(verb: &'a Verb, words: &[&'a str], each: &mut dyn FnMut(&[&'a str], &'a Verb)) {
    if !words.is_empty() {
        each(words, verb);
    }
    for inner in verb.get_subcommands().filter(|inner| inner.get_name() != "help") {
        verbs(inner, &[words, &[inner.get_name()]].concat(), each);
    }
}

#[test]
fn no_argument_of_any_verb_acts_or_hides() {
    let (root, mut runs) = (Cli::command(), 0);
    // The path leads through a file as if it were a folder, so outputs are refused before anything is computed.
    let path = format!("/dev/null/{HOSTILE}");
    verbs(&root, &[], &mut |words, verb| {
        let flags = verb.get_arguments().filter(|arg| arg.get_action().takes_values());
        let mut arguments: Vec<Vec<String>> = vec![vec![path.clone()], vec![format!("--{HOSTILE}")]];
        arguments.extend(flags.map(|arg| given(arg, &path)));
        for given in arguments {
            let mut all: Vec<&str> = words.iter().copied().chain(given.iter().map(String::as_str)).collect();
            if words == ["bench"] {
                // The shape is small, so that a call that is not refused ends soon.
                all.extend(["--shape=1,1,4,4,4", "--force"]);
            }
            if words == ["demo"] {
                all.push("--out=/dev/null/demo");
            }
            let output = ran(&all, &[]);
            require_clean(&format!("{all:?}"), &output);
            runs += 1;
        }
    });
    assert!(runs > 150, "{runs}");
}

/// Returns the words of a command line that pass `path` as the value of `arg`.
fn given(arg: &Arg, path: &str) -> Vec<String> {
    let count = arg.get_num_args().map_or(1, |count| count.min_values()).max(1);
    let values = vec![path.to_owned(); count];
    match arg.get_long() {
        Some(flag) if count == 1 => vec![format!("--{flag}={path}")],
        Some(flag) => [vec![format!("--{flag}")], values].concat(),
        None => values,
    }
}

#[test]
fn no_variable_acts_or_hides() {
    for verb in [&["info"][..], &["info", "--json"], &["warmup"], &["verify"]] {
        for variable in ["ELSA_BACKEND", "ELSA_TUNED"] {
            require_clean(&format!("{verb:?} {variable}"), &ran(verb, &[variable]));
        }
    }
}

/// Checks tables, models and tensors with hostile names and contents.
#[test]
fn no_file_acts_or_hides() {
    let desk = Desk::new();
    let folder = desk.0.path().join(HOSTILE);
    std::fs::create_dir(&folder).unwrap();
    let file = |name: &str, contents: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let names = "workload,shape,dtype,method,backend,kernel,threads,samples,p50_ms,noise,clean";
    let text = HOSTILE.replace('"', "\"\"");
    let row = |kernel: &str, ms: f64| {
        format!(
            "\"{text}\",\"{text}\",\"{text}\",\"{text}\",\"{text}\",\"{kernel}{text}\",3,9,{ms},0.01,true\n"
        )
    };
    let before = file("before.csv", format!("{names}\n{}", row("k", 1.0)).as_bytes());
    let after = file("after.csv", format!("{names}\n{}", row("l", 0.5)).as_bytes());
    let alone = file("alone.csv", format!("{names}\n{}", row("l", 0.5).replace(",3,9,", ",4,9,")).as_bytes());
    let junk = file("junk.npy", HOSTILE.as_bytes());
    let model = file("junk.onnx", HOSTILE.as_bytes());
    let header = format!(
        "{{\"{}\":{{\"dtype\":\"{}\",\"shape\":[1],\"data_offsets\":[0,4]}}}}",
        r"q\u001b\u202e", r"\u009bx\n"
    );
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    let tensors = format!("{}:q", file("q.safetensors", &tensors));
    for json in [&[][..], &["--json"]] {
        for arguments in [
            vec!["bench", "--compare", &before, &after],
            vec!["bench", "--compare", &before, &alone],
            vec!["bench", "--compare", &before, &junk],
            vec!["run", "--q", &junk, "--k", &junk, "--v", &junk, "--out", &junk],
            vec!["run", "--q", &tensors, "--k", &tensors, "--v", &tensors, "--out", "o.npy"],
            vec!["verify", "--q", &junk, "--k", &junk, "--v", &junk],
            vec!["onnx", "check", &model],
            vec!["onnx", "rewrite", &model, &junk],
            vec!["merge", &junk, &junk, "--out", &junk],
        ] {
            let all = [&arguments[..], json].concat();
            let output = ran(&all, &[]);
            require_clean(&format!("{all:?}"), &output);
            let told = output.stdout.len() + output.stderr.len();
            assert!(told > 0, "{all:?}");
        }
    }
    let compared = ran(&["bench", "--compare", &before, &after, "--json"], &[]);
    let line: serde_json::Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert_eq!((&line["what"], compared.status.code()), (&"change".into(), Some(0)));
}
