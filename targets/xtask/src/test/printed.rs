//! Reads counts from the output of cargo, libtest, rustfmt, libFuzzer and the bare-metal program.

use serde_json::Value;
use std::collections::BTreeSet;

/// Returns the numbers of passed, failed and ignored tests, summed over all lines `test result: …` of libtest.
pub fn libtest(text: &str) -> (u64, u64, u64) {
    let mut sum = (0, 0, 0);
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("test result:")) {
        let words: Vec<&str> = line.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(n) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" => sum.0 += n,
                "failed" => sum.1 += n,
                "ignored" => sum.2 += n,
                _ => {}
            }
        }
    }
    sum
}

/// Returns the number of tests that libtest filtered out, summed over all lines `test result: …`.
pub fn skipped(text: &str) -> u64 {
    let lines = text.lines().filter(|line| line.trim().starts_with("test result:"));
    let counts =
        lines.filter_map(|line| line.split(" filtered out").next()?.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

/// Returns the tests that libtest reports as failed.
pub fn failures(text: &str) -> Vec<&str> {
    let lines =
        text.lines().filter_map(|line| line.trim().strip_suffix(" ... FAILED")?.strip_prefix("test "));
    lines.filter_map(|line| line.split(' ').next()).collect()
}

/// Counts the files that rustfmt lists in verbose mode.
pub fn formatted(text: &str) -> u64 {
    let files: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("Formatting ")).collect();
    files.len() as u64
}

/// Lists the targets of local packages that cargo's JSON messages report. Each is listed with its name and kind,
/// followed by `test` if it is compiled as a test.
pub fn built(messages: &str) -> BTreeSet<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter(|message| text(&message["package_id"]).starts_with("path+"))
        .map(|message| {
            let target = &message["target"];
            let tested = if message["profile"]["test"] == true { " test" } else { "" };
            format!("{} {}{tested}", text(&target["name"]), text(&target["kind"][0]))
        })
        .collect()
}

/// Returns the number that a JSON object in `text` stores under `name`. A line of `text` may end with a JSON object.
/// The number comes from the first of these objects that has it.
pub fn value(text: &str, name: &str) -> Option<u64> {
    let objects =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line.get(line.find('{')?..)?).ok());
    objects.filter_map(|object| object[name].as_u64()).next()
}

/// Counts the executions that libFuzzer reports in its final statistics.
pub fn executions(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("stat::number_of_executed_units:"));
    lines.filter_map(|n| n.trim().parse::<u64>().ok()).sum()
}

/// Compares the words that board and host print: returns the numbers of equal and of different words, and the first fault.
///
/// Each line contains the name of a case, a kind of row, and words in hexadecimal. The last line contains `end` and the total
/// number of words (see `tests/bare-metal`). Board and host must both print this number of words, and must refuse no problem.
/// The words of a case must not all be equal, except in the case `empty` and in cases with a single word.
pub fn agreement(board: &str, host: &str) -> (u64, u64, Option<String>) {
    let (mut agree, mut differ, mut first) = (0u64, 0u64, None);
    let mut fault = |differ: &mut u64, text: String| {
        *differ += 1;
        first.get_or_insert(text);
    };
    let split = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let (board, host) = (split(board), split(host));
    if board.len() != host.len() {
        fault(&mut differ, format!("{} lines from the board, {} from the host", board.len(), host.len()));
    }
    let (mut words, mut ended) = (0, false);
    let mut values = std::collections::BTreeMap::<&str, (usize, BTreeSet<&str>)>::new();
    for (a, b) in board.iter().zip(&host) {
        let name = b.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
        if a.len() != b.len() || a.iter().take(2).ne(b.iter().take(2)) {
            fault(
                &mut differ,
                format!("{name}: '{}' from the board, '{}' from the host", a.join(" "), b.join(" ")),
            );
            continue;
        }
        match b.first().map(String::as_str) {
            Some("end") => ended = b.get(1).is_some_and(|n| n.parse() == Ok(words)),
            Some(case) => {
                if b.get(1).is_some_and(|what| what == "refused") {
                    fault(&mut differ, format!("{case}: the problem was refused"));
                }
                let seen = values.entry(case).or_default();
                for (i, (x, y)) in a.iter().zip(b).enumerate().skip(2) {
                    words += 1;
                    seen.0 += 1;
                    seen.1.insert(x);
                    if x == y {
                        agree += 1;
                    } else {
                        fault(
                            &mut differ,
                            format!("{name}: word {} is {x} on the board, {y} on the host", i - 2),
                        );
                    }
                }
            }
            None => {}
        }
    }
    if !ended || words == 0 {
        fault(&mut differ, format!("{words} words are not as many as the last line announces"));
    }
    for (case, (words, seen)) in values {
        if case != "empty" && words > 1 && seen.len() < 2 {
            fault(&mut differ, format!("{case}: all {words} words are equal"));
        }
    }
    (agree, differ, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_lines_are_summed() {
        let text = "running 2 tests\ntest a ... ok\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n\
            test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.25s\n";
        assert_eq!((libtest(text), skipped(text)), ((5, 4, 1), 7));
        assert_eq!(libtest("error: could not compile"), (0, 0, 0));
        assert_eq!(
            failures("test a::b ... ok\ntest a::c ... FAILED\ntest d - should panic ... FAILED\n"),
            ["a::c", "d"]
        );
    }

    #[test]
    fn values_are_found_at_the_end_of_lines() {
        let text = "running\ntest a ... {\"n\":1}\n{\"misses\":12,\"n\":3}\nok {\n";
        assert_eq!((value(text, "misses"), value(text, "n"), value(text, "x")), (Some(12), Some(1), None));
    }

    #[test]
    fn messages_of_other_packages_are_not_counted() {
        let line = |id: &str, kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","target":{{"name":"x","kind":["{kind}"]}},"profile":{{"test":{test}}}}}"#
            )
        };
        let own = "path+file:///home/a/x#0.1.0";
        let text = [
            line(own, "lib", false),
            line(own, "lib", false),
            line(own, "lib", true),
            line("registry+index#libm@0.2.0", "lib", false),
            "not json".to_owned(),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found: Vec<String> = built(&text.join("\n")).into_iter().collect();
        assert_eq!(found, ["x lib", "x lib test"]);
    }

    #[test]
    fn files_and_executions_are_read() {
        assert_eq!(
            formatted("Formatting /a/b.rs\nSpent 0.1 secs\nFormatting /a/c.rs\nFormatting /a/b.rs\n"),
            2
        );
        assert_eq!(executions("Done 12 runs in 1 second(s)\nstat::number_of_executed_units: 12\n"), 12);
        assert_eq!(executions("Done 12 runs"), 0);
    }

    #[test]
    fn agreement_is_of_every_bit() {
        let good = "a y 00000001 00000002\na lse 3f800000\nempty y 00000000 00000000\nend 5\n";
        assert_eq!(agreement(good, good), (5, 0, None));
        for (bad, why) in [
            (good.replace("00000002", "00000003"), "word 1"),
            (good.replace("a lse 3f800000\n", ""), "lines"),
            (good.replace("end 5", "end 4"), "end"),
            (good.replace("a lse 3f800000", "a lse"), "a lse"),
            (good.replace("end 5\n", ""), "lines"),
            (String::new(), "lines"),
        ] {
            let (_, differ, first) = agreement(&bad, good);
            assert!(differ > 0 && first.as_deref().is_some_and(|x| x.contains(why)), "{bad}: {first:?}");
        }
        for both in ["", "end 0", "a y 00000000 00000000\nend 2", "a refused\nend 0", "a y 00000001\nend 2"] {
            let (_, differ, _) = agreement(both, both);
            assert!(differ > 0, "{both}");
        }
    }
}
