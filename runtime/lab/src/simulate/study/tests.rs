//! Tests the study against the paper's tables, and checks properties that hold for any costs.

use super::{GIB, Request, Shares, Streaming, both, report, sets};

fn request() -> Request<'static> {
    Request { tokens: 1e9, division: (7, 3), levels: None, limit: 80.0 * GIB, link: None, backward: true }
}

#[test]
fn tables_are_those_of_the_paper() {
    let costs = sets::named("a100").unwrap();
    let report = report(&costs, &request()).unwrap();
    // In the backward pass, tasks at four levels do not fit in memory, as the paper says.
    assert_eq!(report.levels.iter().map(|level| level.level).collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
    for level in &report.levels {
        for cost in &level.passes {
            let paper = cost.paper.unwrap();
            // The table's memory differs from the printed line by up to about 1 %, more than rounding explains.
            let printed = cost.printed_fit_gib.unwrap();
            assert!(printed.abs() <= 0.011, "{} {}: {printed}", level.level, cost.pass);
            assert!(paper.gib_off.abs() < 0.02 && paper.hours_off.abs() < 0.04, "{paper:?}");
            assert!(cost.fits);
        }
        // The printed fit is a parabola for 100K to 1M tokens, with three digits; tasks have up to 14.5M tokens.
        let forward = &level.passes[0];
        let off = forward.printed_fit_hours.unwrap() / forward.paper.unwrap().hours - 1.0;
        assert!(off.abs() < 0.045, "{}: {off}", level.level);
    }
    // Work grows by 9/7 per level, unless the kernel skips masked pairs.
    for two in report.levels.windows(2) {
        let grown = two[1].passes[0].dense_hours / two[0].passes[0].dense_hours;
        assert!((9.0 / 7.0 - 1e-9..1.45).contains(&grown), "{grown}");
    }
    let five = &report.levels[0];
    assert!((five.copies - 243.0).abs() < 1e-9 && five.passes[0].hours < 0.3 * five.passes[0].dense_hours);
}

#[test]
fn plain_streaming_is_shorter_than_five_levels() {
    let costs = sets::named("a100").unwrap();
    let report = report(&costs, &request()).unwrap();
    let printed = report.streaming.printed_fit_hours[0].1;
    assert!((printed - 2603.0).abs() < 0.5, "{printed}");
    let hours = report.streaming.hours[0].1;
    assert!(hours < 2800.0 && report.levels[0].passes[0].dense_hours > 3.4 * hours, "{hours}");
    assert!(report.streaming.peak_bytes <= 80.0 * GIB && report.streaming.peak_bytes > 79.9 * GIB);
    // Resident rows times passes cover all tokens.
    let Streaming { resident_rows, passes, moved_bytes, .. } = report.streaming;
    assert!(resident_rows * passes >= 1e9 && resident_rows * (passes - 1.0) < 1e9);
    assert!(moved_bytes < report.levels[0].moved_bytes);
}

#[test]
fn optima_are_those_of_appendix_c_and_a_sound_fit_has_none() {
    let costs = sets::named("a100").unwrap();
    let all = report(&costs, &request()).unwrap().optimum;
    let [printed, sound, backward, _] = &all[..] else { panic!("four") };
    assert!(printed.serial.contains("greatest at 70766 tokens, level 11.28"), "{}", printed.serial);
    assert!((printed.negative_below.unwrap() - 27_985.0).abs() < 1.0);
    assert_eq!(printed.negative_from_level, Some(13));
    assert!(backward.parallel.contains("least at 65") && backward.parallel.contains("level 11.36"));
    assert!(sound.serial.contains("the largest that fit") && sound.negative_from_level.is_none());
    // Four levels are the fewest whose forward tasks fit in memory.
    assert_eq!(sound.best_level, Some(4));
}

#[test]
fn the_study_keeps_to_its_memory() {
    let costs = sets::named("a100").unwrap();
    let study = report(&costs, &request()).unwrap().study;
    assert_eq!((study.heads, study.tokens), (64, 1e6));
    for (uniform, total) in study.uniform.iter().zip([770.0, 967.0, 1417.0]) {
        let [_, seconds] = uniform.printed.unwrap();
        let schedule = uniform.schedule.as_ref().unwrap();
        let tasks: usize = schedule.leaves.iter().sum();
        assert!((seconds * tasks as f64 - total).abs() < 1.0);
        assert!((schedule.serial / total - 1.0).abs() < 0.15, "{}", schedule.serial);
        assert!(schedule.at_once.peak_bytes <= study.limit);
    }
    // The backward pass needs about twice the memory and up to two and a half times the time (section 3.2).
    for both in both(&costs).iter().filter(|both| both.tokens >= 4e5) {
        let ratio = |of: [f64; 2]| of[1] / of[0];
        let (bytes, seconds) = (ratio(both.bytes), ratio(both.seconds));
        assert!((1.7..2.0).contains(&bytes) && (2.15..2.5).contains(&seconds), "{bytes} {seconds}");
    }
    assert_eq!(study.hybrid_paths.len(), study.hybrid.as_ref().unwrap().leaves.iter().sum::<usize>());
    assert!(study.hybrid_paths.contains(&"6".to_owned()) && study.hybrid_paths[0] == "0.0.0");
    let hybrid = study.hybrid.unwrap();
    assert!(hybrid.at_once.peak_bytes <= study.limit && hybrid.tree.divided > 0);
    let uniform = study.uniform[0].schedule.as_ref().unwrap();
    assert!(hybrid.at_once.seconds < uniform.at_once.seconds);
}

#[test]
fn shares_of_the_time_are_near_those_that_are_printed() {
    let costs = sets::named("a100").unwrap();
    let shares = report(&costs, &request()).unwrap().shares;
    assert_eq!(shares.len(), 5);
    for Shares { level, printed, modelled } in shares {
        assert!((modelled.iter().sum::<f64>() - 100.0).abs() < 1e-9);
        for (i, (printed, modelled)) in printed.iter().zip(modelled).enumerate() {
            assert!((printed - modelled).abs() < 1.5, "{level} {i}: {printed} {modelled}");
        }
    }
}

#[test]
fn other_sizes_and_boards_have_reports() {
    for name in ["a100", "h200", "jetson-tx2"] {
        let costs = sets::named(name).unwrap();
        for tokens in [1.0, 2.0, 100.0, 1e5, 1e12] {
            let request =
                Request { tokens, limit: 256.0 * 1048576.0, link: Some(3e8), backward: false, ..request() };
            let report = report(&costs, &request).unwrap();
            assert!(report.streaming.peak_bytes <= request.limit, "{name} {tokens}");
            assert!(report.levels.iter().all(|level| level.passes[0].hours > 0.0), "{name} {tokens}");
            assert!(report.streaming.moved_hours.unwrap() > 0.0);
        }
    }
    let tiny = Request { limit: 1000.0, ..request() };
    assert_eq!(report(&sets::named("a100").unwrap(), &tiny).unwrap_err().status(), 2);
}
