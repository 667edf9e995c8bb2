//! Tests `elsa-lab simulate`: the paper's numbers, saved fits, the page, and refused requests.

use super::{Desk, assert_alone};
use elsa_cli::picture::faults;
use serde_json::Value;

fn json(desk: &Desk, line: &str) -> Value {
    serde_json::from_str(&desk.ok(&format!("simulate {line} --json"))).unwrap()
}

#[test]
fn a_billion_tokens_are_told_as_the_paper_tells_them() {
    let desk = Desk::new();
    let all = json(&desk, "--tokens 1e9 --backward");
    assert_eq!(
        (&all["what"], &all["board"], &all["origin"]),
        (&"simulate".into(), &"a100".into(), &"published".into())
    );
    let levels = all["levels"].as_array().unwrap();
    let printed =
        [[9510.0, 23411.0], [12138.0, 30075.0], [15621.0, 38497.0], [20817.0, 50556.0], [28824.0, 67256.0]];
    assert_eq!(levels.len(), printed.len());
    for (level, printed) in levels.iter().zip(printed) {
        for (cost, printed) in level["passes"].as_array().unwrap().iter().zip(printed) {
            assert_eq!(cost["paper"]["hours"], printed);
            let hours = cost["dense_hours"].as_f64().unwrap();
            assert!((hours / printed - 1.0).abs() < 0.02, "{hours} {printed}");
        }
    }
    // Hours of plain streaming, first according to the printed fit, then to the fit without negative coefficients.
    let streaming = &all["streaming"];
    assert_eq!(streaming["printed_fit_hours"][0][1].as_f64().unwrap().round(), 2603.0);
    assert!(streaming["hours"][0][1].as_f64().unwrap() < 2800.0);
    for fit in all["fits"].as_array().unwrap() {
        assert!(fit["seconds"].as_array().unwrap().iter().all(|a| a.as_f64().unwrap() >= 0.0), "{fit}");
    }
    let text = desk.ok("simulate --backward");
    for words in [
        "table 1",
        "table 2",
        "figures 4, 8, 9",
        "figure 5",
        "figure 6",
        "appendix C",
        "2603.1 h",
        "9510 h",
        "negative below 27985 tokens",
        "greatest at 70766 tokens, level 11.28",
        "hybrid",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(desk.list(), [""; 0]);
}

#[test]
fn every_board_with_a_profile_is_simulated_and_the_output_says_so() {
    let desk = Desk::new();
    let tx2 = desk.ok("simulate --tokens 100K --board jetson-tx2 --memory 256MiB --link 0.3");
    for words in ["predicted", "nobody has measured", "or more resident rows, computing"] {
        assert!(tx2.contains(words), "{words}: {tx2}");
    }
    assert!(desk.ok("simulate --tokens 1M --board h200 --c 13 --levels 1..3").contains("c = 13, l = 4"));
    // A single token is not divided further, so only one level is listed.
    assert_eq!(json(&desk, "--tokens 1")["levels"].as_array().unwrap().len(), 1);
}

#[test]
fn a_machine_is_measured_kept_and_read_again() {
    let desk = Desk::new();
    let line = "--tokens 4096 --measure=16,32,64 --dim 16 --threads 1 --save-fit fit.json --html page.html";
    let measured = json(&desk, line);
    let unseen: Vec<u64> = measured["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(unseen, [23, 45, 96]);
    assert_eq!(measured["origin"], "measured");
    let beside = json(&desk, "--tokens 4096 --measure=16,32,64 --dim 16 --threads 1 --beside=600");
    let ran = beside["beside"].as_array().unwrap();
    for method in ["streaming", "quorums"] {
        assert!(
            ran.iter().any(|ran| ran["method"] == method && ran["seconds"].as_f64().unwrap() > 0.0),
            "{ran:?}"
        );
    }
    let again = json(&desk, "--tokens 4096 --fit fit.json");
    // The file's decimal numbers may differ from the measured ones in the last bit.
    for i in 0..3 {
        let of = |report: &Value| report["fits"][0]["seconds"][i].as_f64().unwrap();
        assert!((of(&again) - of(&measured)).abs() <= 1e-12 * of(&measured), "{i}: {again}");
    }
    assert_eq!((&again["dim"], &again["heads"]), (&16.into(), &1.into()));
    let page = std::fs::read_to_string(desk.path("page.html")).unwrap();
    let seconds = measured["checks"][0]["seconds"].as_f64().unwrap();
    assert!(page.contains(&format!("{seconds:.4e}")), "{seconds}");
    assert_eq!(faults(&page), [""; 0]);
    assert_eq!(desk.list(), ["fit.json", "page.html"]);
    // A negative time is refused.
    let fit = std::fs::read_to_string(desk.path("fit.json")).unwrap();
    let mut bad: Value = serde_json::from_str(&fit).unwrap();
    bad["seconds"][1][1] = (-1.0).into();
    std::fs::write(desk.path("bad.json"), bad.to_string()).unwrap();
    let output = desk.call("simulate --fit bad.json");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && text.contains("--fit: ") && text.contains("-1 at 32 tokens"),
        "{text}"
    );
}

#[test]
fn the_backward_pass_is_measured_kept_and_read_again() {
    let desk = Desk::new();
    let line = "--tokens 4096 --measure=16,32,64 --dim 16 --threads 1 --backward --save-fit fit.json";
    let measured = json(&desk, line);
    let again = json(&desk, "--tokens 4096 --fit fit.json --backward");
    for report in [&measured, &again] {
        let fits = report["fits"].as_array().unwrap();
        let passes: Vec<&str> = fits.iter().map(|fit| fit["pass"].as_str().unwrap()).collect();
        assert_eq!(passes, ["forward", "backward"], "{report}");
        assert!(fits[1]["bytes"][0].as_f64().unwrap() > fits[0]["bytes"][0].as_f64().unwrap(), "{report}");
    }
    assert!(desk.ok("simulate --tokens 4096 --fit fit.json --backward").contains("backward"));
    // Without --backward the file has one pass.
    desk.ok("simulate --tokens 4096 --measure=16,32,64 --dim 16 --threads 1 --save-fit fit.json");
    assert!(!std::fs::read_to_string(desk.path("fit.json")).unwrap().contains("backward"));
}

#[test]
fn examples_of_the_help_run() {
    let desk = Desk::new();
    let help = desk.ok("simulate --help");
    let examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  elsa-lab simulate ")).collect();
    assert!(examples.len() >= 4, "{help}");
    for example in examples {
        // The examples run with smaller sizes.
        let line = example
            .replace("  elsa-lab ", "")
            .replace("--measure", "--measure=16,32,64")
            .replace("--beside", "--beside=64");
        desk.ok(&line);
    }
    assert_eq!(desk.list(), ["here.json", "page.html"]);
    assert_eq!(faults(&std::fs::read_to_string(desk.path("page.html")).unwrap()), [""; 0]);
}

#[test]
fn the_page_holds_the_numbers_and_nothing_from_elsewhere() {
    let desk = Desk::new();
    let text = desk.ok("simulate --backward --html page.html");
    let page = std::fs::read_to_string(desk.path("page.html")).unwrap();
    assert_alone(&page);
    for words in ["9510 h", "2683.9 h", "The hybrid tree", "Bytes moved", "Peak bytes", "as printed", "28.80"]
    {
        assert!(page.contains(words), "{words}");
    }
    assert!(
        text.contains("2683.9 h") && page.matches("<svg").count() >= 9,
        "{}",
        page.matches("<svg").count()
    );
    // The drawing of the tree contains the tasks, and its legend explains the colours.
    assert!(page.contains("level 1, task 0, divided") && page.contains("level 3, task 0"));
    assert!(page.contains("level 3</li>") && page.contains("divided further</li>"), "{page}");
    // Axes have units, and a heading has a picture.
    assert_eq!(faults(&page), [""; 0]);
    for label in [" h</text>", " GiB</text>", ">1G</text>"] {
        assert!(page.contains(label), "{label}: {page}");
    }
    assert!(
        !page.contains("quorums, run on this machine") && !page.contains("<div class=\"charts\">\n</div>")
    );
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let desk = Desk::new();
    for (line, words) in [
        ("--tokens 0", "--tokens: '0'; allowed: a whole number of tokens from 1 to 1e15"),
        ("--tokens 1e99", "--tokens: '1e99'; allowed"),
        ("--tokens nan", "--tokens: 'nan'; allowed"),
        ("--tokens -5", "--tokens: '-5'; allowed"),
        ("--board tx3", "--board: 'tx3'; allowed: a100, h200, jetson-tx2, jetson-nano"),
        ("--board jetson-orin", "--board: jetson-orin, whose profile lacks gpu.sms"),
        ("--c 43", "--c: 43; allowed: 31 or 57, its neighbours"),
        ("--c 111", "--c: 111; allowed: 91 or 133"),
        ("--c 1", "--c: 1; allowed: from 3 on"),
        ("--levels 9..5", "--levels: '9..5'; allowed: rising levels"),
        ("--memory 10", "--memory: 10 bytes; allowed: at least"),
        ("--memory x", "--memory: 'x'; allowed"),
        ("--link 0", "--link: '0'; allowed"),
        ("--fit none.json", "--fit: none.json: cannot be read"),
        ("--fit a.json --board a100", "given with"),
        ("--heads 2", "--measure"),
        ("--beside", "--measure"),
        ("--measure=1,2", "--measure: '1,2'; allowed: 3 rising"),
        ("--html none/page.html", "--html: none/page.html: cannot be written"),
    ] {
        desk.refused(&format!("simulate {line}"), &[words]);
    }
    // An output must not replace a file that is read, and a path that is not a file is refused without waiting for it.
    desk.ok("simulate --tokens 1M --measure=64,96,128 --threads 1 --save-fit fit.json");
    for output in ["fit.json", "./fit.json"] {
        let line = format!("simulate --tokens 1M --fit fit.json --html {output}");
        desk.refused(&line, &["which --fit reads; allowed: another file, or --force"]);
    }
    for path in ["/dev/zero", "/dev/stdin", "."] {
        desk.refused(&format!("simulate --tokens 1M --fit {path}"), &["--fit: ", "not a regular file"]);
    }
}
