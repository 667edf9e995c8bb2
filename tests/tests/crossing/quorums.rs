//! Compares the tasks of quorums with algorithm 3 as printed in the Stream-CQSA paper, and counts how often each pair is
//! computed.

use elsa_core::quorum::{BalancedChunkLayout, Division, InterestSet, MAX_RUNS, Span, Task, TaskPath, Tree};
use elsa_oracle::random::seeded;

/// `true` under interpreters and sanitizers; tests then use fewer sizes.
const FEW: bool = cfg!(any(miri, elsa_sanitized));

/// Implements BuildSubseq of algorithm 3: returns the tokens of a task, and for each level the chunk of every token.
fn build_subseq(division: &Division, path: &TaskPath, tokens: usize) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut ids: Vec<usize> = (0..tokens).collect();
    let mut history: Vec<Vec<usize>> = Vec::new();
    for (set, q) in division.sets().iter().zip(path.digits()) {
        let c = set.chunks();
        let (size, larger) = (ids.len() / c, ids.len() % c);
        let start = |u: usize| u * size + u.min(larger);
        let mut gather = Vec::new();
        let mut labels = Vec::new();
        for o in set.members() {
            let u = (usize::from(*q) + o) % c;
            gather.extend(start(u)..start(u + 1));
            labels.resize(gather.len(), u);
        }
        for row in &mut history {
            *row = gather.iter().map(|i| row[*i]).collect();
        }
        history.push(labels);
        ids = gather.iter().map(|i| ids[*i]).collect();
    }
    (ids, history)
}

/// Implements LocalMaskFromGroupRuns of algorithm 3: returns `true` if the task computes the pair of its local tokens
/// `i` and `j`.
fn meet(path: &TaskPath, queries: &[Vec<usize>], keys: &[Vec<usize>], i: usize, j: usize) -> bool {
    let levels = queries.iter().zip(keys).zip(path.digits());
    !levels.into_iter().any(|((a, b), q)| a[i] == b[j] && a[i] != usize::from(*q))
}

fn tokens(span: Span) -> impl Iterator<Item = (usize, usize)> + Clone {
    (0..span.tokens).map(move |t| (span.offset + t, span.start + t))
}

/// Returns how often all tasks together compute each pair of a query and a key.
fn coverage(division: &Division, queries: usize, keys: usize) -> Vec<u8> {
    let mut counts = vec![0u8; queries * keys];
    let mut total = 0;
    for number in 0..division.tasks() {
        let task = Task::new(division, &division.path(number).unwrap(), queries, keys).unwrap();
        for (rows, columns) in task.pairs() {
            for (_, i) in tokens(rows) {
                for (_, j) in tokens(columns) {
                    counts[i * keys + j] += 1;
                }
            }
        }
        total += task.pair_count();
    }
    assert_eq!(total, (queries * keys) as u128);
    counts
}

#[test]
fn tasks_are_those_of_the_printed_algorithm() {
    let mut random = seeded(31);
    let divisions: [&[usize]; 7] = [&[1], &[3], &[7], &[7, 7], &[13, 3, 7], &[3, 7, 3, 7], &[21, 1, 7]];
    for chunks in divisions {
        let division = Division::new(chunks).unwrap();
        for n in [0, 1, 5, 7, 49, 60, 131] {
            for _ in 0..if FEW { 1 } else { 6 } {
                let m = n + random.below(20);
                let path = division.path(random.below(division.tasks() as usize) as u64).unwrap();
                let task = Task::new(&division, &path, n, m).unwrap();
                let ((rows, row_labels), (columns, column_labels)) =
                    (build_subseq(&division, &path, n), build_subseq(&division, &path, m));
                assert_eq!((task.query_tokens(), task.key_tokens()), (rows.len(), columns.len()));
                for (runs, ids, labels) in
                    [(task.queries(), &rows, &row_labels), (task.keys(), &columns, &column_labels)]
                {
                    let listed: Vec<_> = runs.iter().flat_map(|run| tokens(run.span())).collect();
                    assert!(listed.iter().copied().eq(ids.iter().copied().enumerate()), "{chunks:?} {path}");
                    for run in runs {
                        let mine = run.labels(path.depth()).iter().map(|x| usize::from(*x));
                        assert!(mine.eq(labels.iter().map(|level| level[run.span().offset])));
                    }
                }
                let mut mine = vec![false; rows.len() * columns.len()];
                for (a, b) in task.pairs() {
                    for (i, _) in tokens(a) {
                        for (j, _) in tokens(b) {
                            assert!(!mine[i * columns.len() + j]);
                            mine[i * columns.len() + j] = true;
                        }
                    }
                }
                for (x, mine) in mine.into_iter().enumerate() {
                    let (i, j) = (x / columns.len(), x % columns.len());
                    assert_eq!(
                        mine,
                        meet(&path, &row_labels, &column_labels, i, j),
                        "{chunks:?} {path} {i} {j}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_pair_is_computed_exactly_once() {
    let one = |c: usize| -> Vec<usize> {
        let all = [0, 1, 2, c - 1, c, c + 1, 2 * c + 3];
        all.into_iter().chain(0..if FEW { 2 } else { 40 }).collect()
    };
    let sizes: Vec<usize> = InterestSet::sizes().filter(|c| *c <= 31).collect();
    for &c in &sizes {
        let division = Division::new(&[c]).unwrap();
        for n in one(c) {
            for m in [n, n / 2, n + 5] {
                assert!(coverage(&division, n, m).iter().all(|count| *count == 1), "{c}: {n} {m}");
            }
        }
    }
    let pairs = sizes.iter().flat_map(|a| sizes.iter().map(move |b| [*a, *b]));
    for [a, b] in pairs.filter(|[a, b]| !FEW || a * b <= 49) {
        let division = Division::new(&[a, b]).unwrap();
        for n in [0, 1, 6, 23, 50] {
            assert!(coverage(&division, n, n).iter().all(|count| *count == 1), "{a} {b}: {n}");
        }
    }
    let three: &[[usize; 3]] = &[
        [3, 3, 3],
        [7, 7, 7],
        [7, 13, 3],
        [3, 21, 7],
        [13, 1, 13],
        [13, 13, 13],
        [21, 21, 21],
        [31, 31, 31],
    ];
    for levels in &three[..if FEW { 1 } else { three.len() }] {
        let division = Division::new(levels).unwrap();
        let few = division.tasks() > 5000;
        for n in [0, 2, 29, 64].into_iter().filter(|n| !few || *n == 29) {
            assert!(coverage(&division, n, n + 3).iter().all(|count| *count == 1), "{levels:?}: {n}");
        }
    }
}

/// Checks larger divisions by counting: the tasks' numbers of pairs add up to the number in attention, and no task
/// needs more tokens than its chunks contain.
#[test]
fn large_divisions_do_the_work_of_attention() {
    let sizes: Vec<usize> = InterestSet::sizes().filter(|c| *c > 31).collect();
    for &c in &sizes[..if FEW { 1 } else { sizes.len() }] {
        let division = Division::new(&[c]).unwrap();
        for n in [0, c / 2, 3 * c + 1, 1_000_003] {
            let mut pairs = 0;
            for number in 0..division.tasks() {
                let task = Task::new(&division, &division.path(number).unwrap(), n, n).unwrap();
                let l = division.sets()[0].members().len();
                assert!(task.query_tokens() <= l * n.div_ceil(c));
                pairs += task.pair_count();
            }
            assert_eq!(pairs, (n as u128).pow(2), "{c}: {n}");
        }
    }
}

/// Changes one member of each difference set, and checks that the changed set is refused. Such a set lacks a
/// difference, so that pairs would be lost.
#[test]
fn a_changed_set_is_refused_and_would_lose_pairs() {
    for c in InterestSet::sizes().filter(|c| (7..=133).contains(c)) {
        let set = InterestSet::of(c).unwrap();
        let mut members: Vec<usize> = set.members().collect();
        let last = members.len() - 1;
        let free = (2..c).rev().find(|x| !members.contains(x)).unwrap();
        members[last] = free;
        if InterestSet::from_members(c, &members).is_ok() {
            assert_eq!(c, 7, "{members:?}");
            continue;
        }
        let lost = (1..c).any(|d| !members.iter().any(|x| members.contains(&((x + d) % c))));
        assert!(lost, "{members:?}");
    }
}

/// Plans tasks with nine levels of seven chunks over 10⁹ tokens: each plan consists of two lists of at most 19 runs.
#[test]
fn a_task_of_nine_levels_is_planned_within_its_budget() {
    let division = Division::new(&[7; 9]).unwrap();
    let mut random = seeded(9);
    assert!(size_of::<Task>() + size_of::<Division>() <= 64 << 10, "{}", size_of::<Task>());
    let mut most = 0;
    let count = if FEW { 5 } else { 1000 };
    for _ in 0..count {
        let number = random.bits() % division.tasks();
        let task =
            Task::new(&division, &division.path(number).unwrap(), 1_000_000_000, 1_000_000_000).unwrap();
        most = most.max(task.queries().len());
        assert!((487_000..=489_600).contains(&task.query_tokens()), "{}", task.query_tokens());
        let calls = task.pairs().count();
        assert!(calls <= 19 * 19, "{calls}");
        assert!(task.pair_count() <= (task.query_tokens() as u128).pow(2));
    }
    assert!(most <= 19 && most > 3, "{most}");
    println!("a task of nine levels: at most {most} runs, {} bytes", size_of::<Task>());
    let widest = Division::new(&[1057, 1057, 1057, 1057, 1057, 1057]).unwrap();
    let task = Task::new(&widest, &widest.path(5).unwrap(), usize::MAX / 4, usize::MAX / 4).unwrap();
    assert!(task.queries().len() <= 6 * 32 + 1 && task.queries().len() <= MAX_RUNS);
}

/// Checks that a tree in which only some tasks are divided further also covers every pair.
#[test]
fn hybrid_trees_cover_every_pair() {
    let division = Division::new(&[7, 3, 7]).unwrap();
    let mut paths: Vec<TaskPath> =
        (0..7u16).filter(|q| *q != 3).map(|q| TaskPath::new(&[q]).unwrap()).collect();
    paths.extend([0, 2].map(|q| TaskPath::new(&[3, q]).unwrap()));
    paths.extend((0..7).map(|q| TaskPath::new(&[3, 1, q]).unwrap()));
    let tree = Tree::new(&division, &mut paths).unwrap();
    for n in [0, 4, 61] {
        let mut counts = vec![0u8; n * n];
        for path in tree.paths() {
            for (a, b) in Task::new(&division, path, n, n).unwrap().pairs() {
                for (_, i) in tokens(a) {
                    tokens(b).for_each(|(_, j)| counts[i * n + j] += 1);
                }
            }
        }
        assert!(counts.iter().all(|count| *count == 1));
    }
    assert_eq!(BalancedChunkLayout::new(61, 7).range(6), 53..61);
}
