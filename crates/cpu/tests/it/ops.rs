//! Every op on every instruction set against its formula in f64.

use rocmforge_cpu::{
    Isa, LayerNormParams, Pool, Rotation, activate, add, add_gated, argmax, gated_activation,
    join_heads, layer_norm, log_sum_exp, rms_norm, rms_norm_groups, rope, scale, soft_cap,
};
use rocmforge_plan::RopeStyle;

use crate::activations::{ACTIVATIONS, activated, of_up};
use crate::random::Rng;

/// Widths around the boundaries of vectors of 8 and 16 values, and of four such vectors.
const WIDTHS: [usize; 14] = [1, 2, 7, 8, 9, 15, 16, 31, 32, 33, 64, 100, 127, 1030];

fn check(what: &str, got: &[f32], want: impl IntoIterator<Item = f64>) {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= 1e-6 * want.abs().max(1.0),
            "{what}: element {i} is {got}, not {want}"
        );
    }
}

/// Runs `op` on one thread and on several, checks that both results have the same bits, and returns them.
fn same_on_any_pool(op: impl Fn(&Pool) -> Vec<f32>) -> Vec<f32> {
    let one = op(&Pool::new(1));
    let many = op(&Pool::new(3));
    assert!(
        one.iter()
            .zip(&many)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    one
}

#[test]
fn rms_norm_follows_its_formula() {
    let mut rng = Rng(1);
    for isa in Isa::available() {
        for width in WIDTHS {
            for n_rows in [1, 3, 70] {
                let (x, weight) = (rng.vec(n_rows * width), rng.vec(width));
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; x.len()];
                    rms_norm(isa, pool, &x, &weight, 1e-5, &mut out);
                    out
                });
                let want = x.chunks(width).flat_map(|x| {
                    let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let scale = 1.0 / (squares / width as f64 + f64::from(1e-5f32)).sqrt();
                    x.iter()
                        .zip(&weight)
                        .map(move |(&x, &w)| f64::from(x) * scale * f64::from(w))
                });
                check(&format!("{isa} rms_norm {n_rows} x {width}"), &got, want);
                // A row has the same bits alone and in a batch.
                let mut alone = vec![0.0; width];
                let last = (n_rows - 1) * width;
                rms_norm(isa, &Pool::new(1), &x[last..], &weight, 1e-5, &mut alone);
                assert_eq!(alone, got[last..]);
            }
        }
    }
}

/// The same bits as norms of the groups one by one.
#[test]
fn groups_have_norms_of_their_own() {
    let mut rng = Rng(2);
    for isa in Isa::available() {
        for (width, n_groups) in [(96, 1), (96, 3), (140, 20), (1024, 8)] {
            for n_rows in [1, 3, 70] {
                let (x, weight) = (rng.vec(n_rows * width), rng.vec(width));
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; x.len()];
                    rms_norm_groups(isa, pool, &x, (&weight, n_groups), 1e-5, &mut out);
                    out
                });
                let of_group = width / n_groups;
                let weights = weight.chunks(of_group).cycle();
                for (group, (x, weight)) in x.chunks(of_group).zip(weights).enumerate() {
                    let mut alone = vec![0.0; of_group];
                    rms_norm(isa, &Pool::new(1), x, weight, 1e-5, &mut alone);
                    let found = &got[group * of_group..][..of_group];
                    assert_eq!(found, alone, "{isa} {n_groups} of {width}");
                }
            }
        }
    }
}

#[test]
fn layer_norm_follows_its_formula() {
    let mut rng = Rng(12);
    for isa in Isa::available() {
        for width in WIDTHS.into_iter().filter(|&width| width > 1) {
            for n_rows in [1, 3, 70] {
                // A mean far from zero, where the mean square less the squared mean would cancel.
                let x: Vec<f32> = rng.vec(n_rows * width).iter().map(|x| x + 30.0).collect();
                let (weight, bias) = (rng.vec(width), rng.vec(width));
                let params = LayerNormParams {
                    weight: &weight,
                    bias: &bias,
                    eps: 1e-5,
                };
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; x.len()];
                    layer_norm(isa, pool, &x, &params, &mut out);
                    out
                });
                let what = format!("{isa} layer_norm {n_rows} x {width}");
                for (row, (x, got)) in x.chunks(width).zip(got.chunks(width)).enumerate() {
                    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                    let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
                    let scale = 1.0 / (squares / width as f64 + f64::from(1e-5f32)).sqrt();
                    for i in 0..width {
                        let want = (f64::from(x[i]) - mean) * scale * f64::from(weight[i])
                            + f64::from(bias[i]);
                        // The mean is an f32 of 30, with an error of 2e-6 at most.
                        let allowed = 4e-6 * scale + 2e-6 * want.abs().max(1.0);
                        let error = (f64::from(got[i]) - want).abs();
                        assert!(
                            error <= allowed,
                            "{what}: {row}, {i}: {} not {want}",
                            got[i]
                        );
                    }
                }
                let mut alone = vec![0.0; width];
                let last = (n_rows - 1) * width;
                let pool = Pool::new(1);
                layer_norm(isa, &pool, &x[last..], &params, &mut alone);
                assert_eq!(alone, got[last..]);
            }
        }
    }
}

#[test]
fn add_and_activations_follow_their_formulas() {
    let mut rng = Rng(2);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([0, 40_000, 40_003]) {
            let (a, b) = (rng.vec(n), rng.vec(n));
            let got = same_on_any_pool(|pool| {
                let mut out = b.clone();
                add(isa, pool, &a, &mut out);
                out
            });
            let want = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) + f64::from(b));
            check(&format!("{isa} add {n}"), &got, want);

            let gate: Vec<f32> = a.iter().map(|a| a * 20.0).collect();
            for activation in ACTIVATIONS {
                let formula = |x| activated(activation, x);
                let up = |x: f32| of_up(activation, f64::from(x));
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; n];
                    gated_activation(isa, pool, activation, &gate, &b, &mut out);
                    out
                });
                let want = gate
                    .iter()
                    .zip(&b)
                    .map(|(&g, &u)| formula(f64::from(g)) * up(u));
                check(&format!("{isa} gated {activation:?} {n}"), &got, want);

                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; n];
                    activate(isa, pool, activation, &gate, &mut out);
                    out
                });
                let want = gate.iter().map(|&g| formula(f64::from(g)));
                check(&format!("{isa} {activation:?} {n}"), &got, want);
            }
        }
    }
}

/// Tests the vector exponential through the activations.
#[test]
fn activations_match_their_formulas_at_range_limits() {
    for isa in Isa::available() {
        for activation in ACTIVATIONS {
            let formula = |x| activated(activation, x);
            for x in [
                -1e4f32, -104.0, -89.0, -88.0, -87.0, -5.0, -3.0, -1.0, -1e-30, 0.0, 1e-30, 1.0,
                3.0, 88.0, 104.0, 1e4,
            ] {
                let mut out = [f32::NAN; 9];
                activate(isa, &Pool::new(1), activation, &[x; 9], &mut out);
                let want = formula(f64::from(x));
                for got in out {
                    // e^89 and more counts as infinite, so tiny results may be 0. The error of
                    // an exponent grows with it.
                    let error = (f64::from(got) - want).abs();
                    assert!(
                        error <= 3e-6 * want.abs() + 1e-36,
                        "{isa}: {activation:?}({x}) is {got}, not {want}"
                    );
                }
            }
            let mut out = [0.0; 9];
            activate(isa, &Pool::new(1), activation, &[f32::NAN; 9], &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{isa}: NaN goes through");
        }
    }
}

/// A gate for each group of values, such as a head of attention.
#[test]
fn gates_of_groups_follow_their_formulas() {
    let mut rng = Rng(15);
    for isa in Isa::available() {
        for group in WIDTHS {
            for (n_groups, activation) in [1, 3, 90]
                .into_iter()
                .zip(ACTIVATIONS.iter().cycle().skip(group))
            {
                let up: Vec<f32> = rng.vec(n_groups * group).iter().map(|x| x * 9.0).collect();
                let gate: Vec<f32> = rng.vec(n_groups).iter().map(|x| x * 9.0).collect();
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; up.len()];
                    gated_activation(isa, pool, *activation, &gate, &up, &mut out);
                    out
                });
                let want = (0..up.len()).map(|i| {
                    let gate = activated(*activation, f64::from(gate[i / group]));
                    gate * of_up(*activation, f64::from(up[i]))
                });
                check(
                    &format!("{isa} {activation:?} {n_groups} x {group}"),
                    &got,
                    want,
                );
            }
        }
    }
}

#[test]
fn scale_multiplies_by_a_constant_or_a_vector() {
    let mut rng = Rng(16);
    for isa in Isa::available() {
        for width in WIDTHS {
            for n_rows in [0, 1, 300] {
                let (x, by) = (rng.vec(n_rows * width), rng.vec(width));
                let got = same_on_any_pool(|pool| {
                    let mut x = x.clone();
                    scale(isa, pool, &by, &mut x);
                    x
                });
                let want: Vec<f32> = (0..x.len()).map(|i| x[i] * by[i % width]).collect();
                assert_eq!(got, want, "{isa} {n_rows} x {width}");
            }
        }
    }
}

#[test]
fn add_gated_follows_its_formula() {
    let mut rng = Rng(14);
    for isa in Isa::available() {
        for width in WIDTHS {
            for n_rows in [0, 1, 90] {
                let (x, old) = (rng.vec(n_rows * width), rng.vec(n_rows * width));
                let gate: Vec<f32> = rng.vec(n_rows).iter().map(|x| x * 9.0).collect();
                let got = same_on_any_pool(|pool| {
                    let mut out = old.clone();
                    add_gated(isa, pool, &gate, &x, &mut out);
                    out
                });
                let want = (0..n_rows * width).map(|i| {
                    let factor = 1.0 / (1.0 + (-f64::from(gate[i / width])).exp());
                    f64::from(old[i]) + factor * f64::from(x[i])
                });
                check(&format!("{isa} add_gated {n_rows} x {width}"), &got, want);
            }
        }
    }
}

#[test]
fn soft_cap_follows_its_formula() {
    let mut rng = Rng(13);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([0, 40_003]) {
            for cap in [0.5f32, 30.0] {
                let x: Vec<f32> = rng.vec(n).iter().map(|x| x * x * x * 60.0).collect();
                let got = same_on_any_pool(|pool| {
                    let mut out = x.clone();
                    soft_cap(isa, pool, cap, &mut out);
                    out
                });
                for (&x, got) in x.iter().zip(got) {
                    let want = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                    let error = (f64::from(got) - want).abs();
                    assert!(
                        error <= 5e-7 * want.abs(),
                        "{isa}: {x} to {got}, not {want}"
                    );
                }
            }
        }
        let mut ends = [0.0, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        soft_cap(isa, &Pool::new(1), 30.0, &mut ends);
        assert_eq!(ends[..5], [0.0, 30.0, -30.0, 30.0, -30.0]);
        assert!(ends[5].is_nan());
    }
}

#[test]
fn rope_follows_its_formula() {
    let mut rng = Rng(3);
    for isa in Isa::available() {
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            for (head_dim, start, n_rot) in [
                (64, 0, 64),
                (128, 0, 128),
                (80, 0, 32),
                (64, 0, 20),
                (40, 0, 40),
                (7, 0, 6),
                (2, 0, 2),
                (5, 0, 0),
                (96, 64, 32),
                (80, 30, 20),
                (9, 2, 6),
            ] {
                for (n_tokens, n_heads) in [(1, 1), (3, 5), (200, 4)] {
                    let width = n_heads * head_dim;
                    let x = rng.vec(n_tokens * width);
                    let angles: Vec<f64> = (0..n_tokens * n_rot / 2)
                        .map(|_| f64::from(rng.unit()) * std::f64::consts::PI)
                        .collect();
                    let cos_sin: Vec<f32> = angles
                        .iter()
                        .flat_map(|a| [a.cos() as f32, a.sin() as f32])
                        .collect();
                    let rotation = Rotation {
                        style,
                        head_dim,
                        n_rot,
                        start,
                        cos_sin: &cos_sin,
                    };
                    let got = same_on_any_pool(|pool| {
                        let mut x = x.clone();
                        rope(isa, pool, n_tokens, &rotation, &mut x);
                        x
                    });
                    let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                    for (i, head) in want.chunks_mut(head_dim).enumerate() {
                        let token = i / n_heads;
                        let head = &mut head[start..];
                        let original = head.to_vec();
                        for pair in 0..n_rot / 2 {
                            let angle = angles[token * n_rot / 2 + pair];
                            let (i, j) = match style {
                                RopeStyle::Norm => (2 * pair, 2 * pair + 1),
                                RopeStyle::Neox => (pair, pair + n_rot / 2),
                            };
                            let turned = |x: f64, y: f64| x * angle.cos() + y * angle.sin();
                            head[i] = turned(original[i], -original[j]);
                            head[j] = turned(original[j], original[i]);
                        }
                    }
                    let what = format!(
                        "{isa} {style:?} {head_dim}/{n_rot} from {start}, {n_tokens} x {n_heads}"
                    );
                    check(&what, &got, want);
                }
            }
        }
    }
}

#[test]
fn log_sum_exp_follows_its_formula() {
    let mut rng = Rng(5);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([150_001]) {
            for offset in [0.0, 300.0, -300.0] {
                let x: Vec<f32> = rng.vec(n).iter().map(|x| x * 15.0 + offset).collect();
                let want = x
                    .iter()
                    .map(|&x| (f64::from(x) - f64::from(offset)).exp())
                    .sum::<f64>()
                    .ln()
                    + f64::from(offset);
                check(
                    &format!("{isa} log_sum_exp {n}"),
                    &[log_sum_exp(isa, &x)],
                    [want],
                );
            }
        }
        let inf = f32::INFINITY;
        assert_eq!(log_sum_exp(isa, &[]), -inf);
        assert_eq!(log_sum_exp(isa, &[-inf; 9]), -inf);
        assert_eq!(log_sum_exp(isa, &[0.0, inf]), inf);
        assert_eq!(log_sum_exp(isa, &[2.5, -inf, -inf]), 2.5);
        for x in [[1.0, f32::NAN], [-inf, f32::NAN], [inf, f32::NAN]] {
            assert!(log_sum_exp(isa, &x).is_nan());
        }
    }
}

#[test]
fn argmax_returns_the_first_maximum() {
    let mut rng = Rng(6);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([3000]) {
            for _ in 0..20 {
                // Few distinct values, so that there are ties.
                let mut x: Vec<f32> = (0..n).map(|_| rng.below(5) as f32 - 9.0).collect();
                x[rng.below(n)] = f32::NAN;
                x[rng.below(n)] = f32::NEG_INFINITY;
                let want = (0..n)
                    .filter(|&i| !x[i].is_nan())
                    .reduce(|a, b| if x[b] > x[a] { b } else { a });
                assert_eq!(argmax(isa, &x), want, "{isa}: {x:?}");
            }
        }
        assert_eq!(argmax(isa, &[]), None);
        assert_eq!(argmax(isa, &[f32::NAN; 9]), None);
        assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 9]), Some(0));
    }
}

#[test]
fn join_heads_puts_heads_in_rows() {
    let mut rng = Rng(12);
    for (n_heads, n_tokens, width, rest) in [
        (1, 5, 64, Some((32, 32))),
        (8, 1, 64, Some((64, 32))),
        (3, 70, 96, None),
        (4, 9, 5, Some((7, 3))),
    ] {
        let x = rng.vec(n_heads * n_tokens * width);
        let (rest_dim, n_rest) = rest.unwrap_or_default();
        let more = rng.vec(n_heads * n_tokens * rest_dim);
        let mut want: Vec<f32> = Vec::new();
        for token in 0..n_tokens {
            for head in 0..n_heads {
                want.extend(&x[(head * n_tokens + token) * width..][..width]);
                let end = (token * n_heads + head + 1) * rest_dim;
                want.extend(&more[end - n_rest..end]);
            }
        }
        let got = same_on_any_pool(|pool| {
            let mut out = vec![f32::NAN; n_heads * n_tokens * (width + n_rest)];
            let more = rest.map(|_| &more[..]);
            join_heads(pool, [n_heads, n_tokens], &x, more, &mut out);
            out
        });
        assert_eq!(got, want, "{n_heads} heads, {n_tokens} tokens");
    }
}
