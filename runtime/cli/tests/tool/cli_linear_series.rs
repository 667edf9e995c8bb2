//! Tests `elsa linear recurrence`, `selective` and `conv` through the binary.

use crate::common::{Desk, noise};

/// Creates a folder with the inputs of all three commands: two sequences, 70 tokens, 6 channels, 4 states.
fn desk() -> Desk {
    let desk = Desk::new();
    let series = [2, 70, 6];
    let negative = |seed, n| noise(seed, n).iter().map(|x: &f32| -x.abs()).collect::<Vec<f32>>();
    for (seed, name) in [(1, "u"), (2, "delta"), (3, "z")] {
        desk.f32(&format!("{name}.npy"), &series, &noise(seed, 840));
    }
    desk.f32("log.npy", &series, &negative(4, 840));
    desk.f32("a.npy", &[6, 4], &negative(5, 24));
    desk.f32("b.npy", &[2, 70, 4], &noise(6, 560));
    desk.f32("c.npy", &[2, 70, 1, 4], &noise(7, 560));
    for (seed, name) in [(8, "d"), (9, "bias")] {
        desk.f32(&format!("{name}.npy"), &[6], &noise(seed, 6));
    }
    desk.f32("filter.npy", &[6, 1, 4], &noise(10, 24));
    desk
}

const RECURRENCE: &str = "linear recurrence --a @log.npy --log --b @u.npy --out @h.npy";
const SELECTIVE: &str = "linear selective --u @u.npy --delta @delta.npy --a @a.npy --b @b.npy --c @c.npy --d @d.npy \
                         --z @z.npy --delta-bias @bias.npy --softplus --out @h.npy";
const CONV: &str =
    "linear conv --u @u.npy --filter @filter.npy --bias @bias.npy --silu --order newest-last --out @h.npy";

#[test]
fn answers_verify_and_continue_from_their_states() {
    let desk = desk();
    for line in [RECURRENCE, SELECTIVE, CONV] {
        for more in ["", " --reverse", " --threads 2 --budget 1MiB"] {
            let report = desk.json(&format!("{line}{more} --verify --json"));
            let worst = report["worst"].as_f64().unwrap();
            assert!(worst > 0.0 && worst <= 1.0, "{report}");
            assert_eq!(report["shape"], serde_json::json!([2, 70, 6]));
            assert_eq!(desk.read("h.npy").0, [2, 70, 6]);
        }
        // Starting from the last state changes the output; starting from a state of zeros does not.
        desk.ok(&format!("{line} --present-state @s.npy"));
        let (plain, (shape, state)) = (desk.read("h.npy").1, desk.read("s.npy"));
        desk.f32("zero.npy", &shape, &vec![0.0; state.len()]);
        desk.ok(&format!("{line} --past-state @zero.npy --verify"));
        assert_eq!(desk.read("h.npy").1, plain);
        desk.ok(&format!("{line} --past-state @s.npy --verify"));
        assert_ne!(desk.read("h.npy").1, plain);
    }
    desk.ok(&format!("{RECURRENCE} --parts 3 --verify"));
    desk.ok(&format!("{CONV} --method fft --verify"));
}

#[test]
fn the_other_order_of_axes_gives_the_same() {
    let desk = desk();
    let turned = |name: &str, width: usize| {
        let data = desk.read(name).1;
        let at = |i: usize| data[i / (70 * width) * 70 * width + i % 70 * width + i / 70 % width];
        (0..data.len()).map(at).collect::<Vec<f32>>()
    };
    desk.ok(SELECTIVE);
    let (want, inputs) = (turned("h.npy", 6), [("u", 6), ("delta", 6), ("z", 6), ("b", 4), ("c", 4)]);
    for (name, width) in inputs {
        let data = turned(&format!("{name}.npy"), width);
        let (plain, grouped) = ([2, width, 70], [2, 1, width, 70]);
        desk.f32(&format!("{name}.npy"), if name == "c" { &grouped[..] } else { &plain }, &data);
    }
    desk.ok(&format!("{SELECTIVE} --layout bct --verify"));
    assert_eq!(desk.read("h.npy").1, want);
}

/// Checks the convolution of the inputs 1 to 4 with the relative decay 1, 1/2, 1/4, 1/8.
#[test]
fn the_example_of_the_article_comes_out() {
    let desk = Desk::new();
    desk.f32("u.npy", &[1, 4, 1], &[1.0, 2.0, 3.0, 4.0]);
    desk.f32("alpha.npy", &[4], &[1.0, 0.5, 0.25, 0.125]);
    for method in ["auto", "direct"] {
        desk.ok(&format!("linear conv --u @u.npy --filter @alpha.npy --out @o.npy --method {method}"));
        assert_eq!(desk.read("o.npy").1, [1.0, 2.5, 4.25, 6.125]);
    }
}

#[test]
fn bad_input_is_told_in_one_line_and_nothing_written() {
    let desk = desk();
    desk.f32("short.npy", &[2, 69, 6], &noise(1, 828));
    desk.f32("flat.npy", &[12], &noise(1, 12));
    desk.f32("odd.npy", &[2, 70, 5], &noise(1, 700));
    let states = |line: &str, from: &str| format!("{line} --past-state @{from}.npy");
    for (line, message) in [
        (RECURRENCE.replace("@log", "@short"), "--a: tokens 69; allowed: 70, as b has"),
        (RECURRENCE.replace("@u", "@flat"), "rank 1, shape [12]; allowed: 3"),
        (format!("{RECURRENCE} --past-state @a.npy"), "--past-state: shape [6, 4]; allowed: [2, 6]"),
        (format!("{RECURRENCE} --parts 0"), "parts: 0; allowed: 1 to 1024"),
        (format!("{RECURRENCE} --budget 10"), "budget: 10 bytes; allowed: at least "),
        (SELECTIVE.replace("@b.npy", "@odd.npy"), "b: channels 5; allowed: a multiple of 4"),
        (SELECTIVE.replace("@d.npy", "@flat.npy"), "--d: shape [12]; allowed: [6]"),
        (SELECTIVE.replace("@a.npy", "@flat.npy"), "rank 1, shape [12]; allowed: 2"),
        (CONV.replace("@filter", "@odd"), "--filter: shape [2, 70, 5]; allowed: [6, 1, 5]"),
        (CONV.replace("@bias.npy", "@flat.npy"), "--bias: shape [12]; allowed: [6]"),
        (CONV.replace("--silu", "--method slow"), "slow"),
        (SELECTIVE.replace("@delta.npy", "@short.npy"), "--delta: tokens 69; allowed: 70, as u has"),
        (SELECTIVE.replace("@z.npy", "@short.npy"), "--z: tokens 69; allowed: 70, as u has"),
        (SELECTIVE.replace("@c.npy", "@flat.npy"), "rank 1, shape [12]; allowed: 2, 3 or 4"),
        (states(SELECTIVE, "d"), "--past-state: shape [6]; allowed: [2, 6, 4]"),
        (states(CONV, "a"), "--past-state: shape [6, 4]; allowed: [2, 6, 3]"),
        (format!("{RECURRENCE} --present-state @h.npy"), "--out writes the same"),
        (format!("{RECURRENCE} --layout tbc"), "--layout: 'tbc'; allowed: btc, bct"),
        (format!("{SELECTIVE} --parts 2"), "--parts: unexpected argument"),
        (RECURRENCE.replace("--b @u.npy", ""), "--b: missing"),
    ] {
        desk.refuses(&line, &[message]);
    }
}
