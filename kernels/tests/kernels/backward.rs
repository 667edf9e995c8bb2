//! Compares each backward kernel that this machine can execute with a computation in f64, on a tile and a block.

use super::noise;
use elsa_kernels::attention::backward::{BackwardBlock, BackwardKernel, BackwardTile};
use elsa_kernels::registry::BACKWARD;

/// Arranges rows of `dim` values by column, in panels.
fn columns(kernel: &BackwardKernel, rows: &[f32], dim: usize) -> Vec<f32> {
    let panel = kernel.spec.panel;
    let mut out = vec![0.0; rows.len()];
    for (i, row) in rows.chunks_exact(dim).enumerate() {
        for (x, value) in row.iter().enumerate() {
            out[(i / panel * dim + x) * panel + i % panel] = *value;
        }
    }
    out
}

/// Arranges rows of `dim` values in strips, padded to `width`.
fn strips(kernel: &BackwardKernel, rows: &[f32], dim: usize, width: usize) -> Vec<f32> {
    let (count, strip) = (kernel.spec.rows, kernel.strip * kernel.spec.lanes);
    let mut out = vec![0.0; count * width];
    for (i, row) in rows.chunks_exact(dim).enumerate() {
        for (x, value) in row.iter().enumerate() {
            let whole = width / strip * strip;
            let wide = if x < whole { strip } else { kernel.spec.lanes };
            let first = if x < whole { x / strip * strip } else { whole + (x - whole) / wide * wide };
            out[first * count + i * wide + (x - first)] = *value;
        }
    }
    out
}

/// A variant of the test: a block with or without a bias and a soft cap, and with or without a masked NaN key.
#[derive(Clone, Copy, Debug)]
struct Form {
    biased: bool,
    cap: f32,
    poisoned: bool,
}

fn check(kernel: &BackwardKernel, count: usize, [d, dv]: [usize; 2], form: Form) {
    let spec = &kernel.spec;
    let (rows, lanes) = (spec.rows, spec.lanes.max(4));
    let (width, value_width) = (d.next_multiple_of(lanes), dv.next_multiple_of(lanes));
    let padded = count.next_multiple_of(spec.tile_keys);
    let [q, up] = [(d, 1), (dv, 2)].map(|(dim, seed)| noise(rows * dim, seed));
    let [mut k, v] = [(d, 3), (dv, 4)].map(|(dim, seed)| noise(padded * dim, seed));
    // With a bias, no row attends key 1.
    let masked = |i: usize, j: usize| form.biased && (j == 1 || (i + j).is_multiple_of(5));
    let bias: Vec<f32> = (0..count * rows)
        .map(|n| if masked(n % rows, n / rows) { f32::NEG_INFINITY } else { (n % 3) as f32 * 0.25 })
        .collect();
    if form.poisoned {
        k[d..2 * d].fill(f32::NAN);
    }
    let mut statistics = vec![0.0; 4 * rows];
    for i in 0..rows {
        (statistics[i], statistics[rows + i]) = ((i % 3) as f32, 0.25);
        statistics[2 * rows + i] = (1.0 / (3.0 * spec.weight_scale)) as f32;
        statistics[3 * rows + i] = 0.125;
    }
    let mut rooms = [(); 4].map(|()| vec![f32::NAN; (spec.block + spec.tile_keys) * rows]);
    let mut d_query = vec![0.5; rows * d];
    let (mut d_keys, mut d_values) = (vec![0.25; padded * width], vec![0.75; padded * value_width]);
    let (query_columns, upstream_columns) = (columns(kernel, &q, d), columns(kernel, &up, dv));
    let (query_rows, upstream_rows) = (strips(kernel, &q, d, width), strips(kernel, &up, dv, value_width));
    let [scores, probabilities, d_scores, d_scores_by_panel] = rooms.each_mut().map(|room| room.as_mut_ptr());
    let tile = BackwardTile {
        query_columns: query_columns.as_ptr(),
        upstream_columns: upstream_columns.as_ptr(),
        query_rows: query_rows.as_ptr(),
        upstream_rows: upstream_rows.as_ptr(),
        statistics: statistics.as_ptr(),
        d_query: d_query.as_mut_ptr(),
        scores,
        probabilities,
        d_scores,
        d_scores_by_panel,
        head_dim: d,
        value_dim: dv,
        head_row: width,
        value_row: value_width,
        finite_query: !form.poisoned,
        finite_upstream: !form.poisoned,
    };
    let block = BackwardBlock {
        keys: k.as_ptr(),
        values: v.as_ptr(),
        d_keys: d_keys.as_mut_ptr(),
        d_values: d_values.as_mut_ptr(),
        count,
        bias: if form.biased { bias.as_ptr() } else { std::ptr::null() },
        cap: form.cap,
        finite_keys: !form.poisoned,
    };
    // SAFETY: the kernel is present, and every array has the size that the contracts of tile and block require.
    unsafe { (kernel.step)(&tile, &block) };

    let wide = |x: f32| f64::from(x);
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| wide(*a) * wide(*b)).sum() };
    let mut want = [vec![0.5; rows * d], vec![0.25; padded * d], vec![0.75; padded * dv]];
    for i in 0..rows {
        for j in (0..count).filter(|j| !masked(i, *j)) {
            let (q, up) = (&q[i * d..][..d], &up[i * dv..][..dv]);
            let key = &k[j * d..][..d];
            let raw = dot(q, key);
            let (score, slope) = match form.cap {
                0.0 => (raw, 1.0),
                cap => (wide(cap) * raw.tanh(), raw.cosh().powi(-2)),
            };
            let score = score + if form.biased { wide(bias[j * rows + i]) } else { 0.0 };
            let p = (score - (i % 3) as f64 - 0.25).exp2() / 3.0;
            let ds = p * (dot(up, &v[j * dv..][..dv]) - 0.125) * slope;
            for x in 0..d {
                want[0][i * d + x] += ds * wide(key[x]);
                want[1][j * d + x] += ds * wide(q[x]);
            }
            (0..dv).for_each(|x| want[2][j * dv + x] += p * wide(up[x]));
        }
    }
    let panel = spec.panel;
    let near = |what: &str, got: f32, want: f64| {
        let error = (wide(got) - want).abs();
        assert!(error <= 1e-4 * (1.0 + want.abs()), "{} {form:?} {what}: {got} {want}", spec.name);
    };
    for i in 0..rows {
        for x in 0..d {
            near("d_query", d_query[(i / panel * d + x) * panel + i % panel], want[0][i * d + x]);
        }
    }
    for j in 0..count {
        (0..d).for_each(|x| near("d_keys", d_keys[j * width + x], want[1][j * d + x]));
        (0..dv).for_each(|x| near("d_values", d_values[j * value_width + x], want[2][j * dv + x]));
    }
}

#[test]
fn a_tile_and_a_block_match_f64() {
    let present: Vec<&BackwardKernel> = BACKWARD.iter().copied().filter(|k| k.is_present()).collect();
    println!("kernels: {:?}", present.iter().map(|k| k.spec.name).collect::<Vec<_>>());
    let counts: &[usize] = if cfg!(miri) { &[3] } else { &[1, 3, 29, 60] };
    for kernel in present {
        for &count in counts {
            for dims in [[4, 8], [20, 36], [68, 4]] {
                for (biased, cap, poisoned) in
                    [(false, 0.0, false), (true, 0.0, false), (true, 1.5, false), (true, 0.0, true)]
                {
                    // The NaN key is the second one, which a block of a single key does not have.
                    let poisoned = poisoned && count > 1;
                    check(kernel, count, dims, Form { biased, cap, poisoned });
                }
            }
        }
    }
}
