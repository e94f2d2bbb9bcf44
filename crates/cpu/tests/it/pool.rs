//! The thread pool: many tiny dispatches, nesting, panics, sharing and idle workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rocmforge_cpu::{MatrixMut, Pool};

fn check_each_task_once(pool: &Pool, n_tasks: usize) {
    let counts: Vec<AtomicU32> = (0..n_tasks).map(|_| AtomicU32::new(0)).collect();
    pool.run(n_tasks, &|i| {
        counts[i].fetch_add(1, Ordering::Relaxed);
    });
    assert!(
        counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
        "{n_tasks} tasks"
    );
}

#[test]
fn every_task_runs_once() {
    for n_threads in [0, 1, 2, 3, 8, 33] {
        let pool = Pool::new(n_threads);
        assert_eq!(pool.n_threads(), n_threads.max(1));
        for n_tasks in [0, 1, 2, 3, 7, 64, 1000] {
            check_each_task_once(&pool, n_tasks);
        }
    }
}

#[test]
fn survives_100k_tiny_dispatches() {
    for n_threads in [2, 4] {
        let pool = Pool::new(n_threads);
        let total = AtomicUsize::new(0);
        let mut expected = 0;
        for round in 0..100_000 {
            let n_tasks = round % 5;
            pool.run(n_tasks, &|i| {
                total.fetch_add(i + 1, Ordering::Relaxed);
            });
            expected += n_tasks * (n_tasks + 1) / 2;
            // The caller must see the tasks' writes as soon as `run` returns.
            assert_eq!(total.load(Ordering::Relaxed), expected);
        }
    }
}

#[test]
fn plain_writes_are_visible_after_run() {
    let pool = Pool::new(4);
    let mut data = vec![0u64; 64];
    for round in 1..20_000u64 {
        pool.for_each_rows(&mut data, 1, 3, &|first, rows| {
            for (i, x) in rows.iter_mut().enumerate() {
                *x += round + (first + i) as u64;
            }
        });
    }
    let sum: u64 = (1..20_000).sum();
    for (i, &x) in data.iter().enumerate() {
        assert_eq!(x, sum + 19_999 * i as u64);
    }
}

#[test]
fn nested_calls_run_inline() {
    let pool = Pool::new(3);
    let count = AtomicUsize::new(0);
    pool.run(10, &|_| {
        let thread = std::thread::current().id();
        pool.run(10, &|_| {
            assert_eq!(std::thread::current().id(), thread);
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.load(Ordering::Relaxed), 100);
}

#[test]
fn panic_reaches_the_caller_and_the_pool_stays_usable() {
    for n_threads in [1, 2, 5] {
        let pool = Pool::new(n_threads);
        for round in 0..200 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|i| {
                    if i == round % 20 {
                        std::panic::resume_unwind(Box::new(i));
                    }
                });
            }));
            let payload = result.expect_err("task panics");
            assert_eq!(payload.downcast_ref::<usize>(), Some(&(round % 20)));
            check_each_task_once(&pool, 50);
        }
    }
}

#[test]
fn threads_share_a_pool() {
    let pool = Pool::new(2);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..2000).for_each(|_| check_each_task_once(&pool, 9)));
        }
    });
}

#[test]
fn parked_workers_wake() {
    let pool = Pool::new(2);
    for pause_us in [0, 20, 200, 1100, 3000, 20_000] {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_micros(pause_us));
            // Each task waits for the other, so both threads must take part.
            let arrived = AtomicUsize::new(0);
            pool.run(2, &|_| {
                arrived.fetch_add(1, Ordering::SeqCst);
                let start = Instant::now();
                while arrived.load(Ordering::SeqCst) < 2 {
                    assert!(
                        start.elapsed() < Duration::from_secs(20),
                        "worker never came"
                    );
                    std::thread::yield_now();
                }
            });
        }
    }
}

#[test]
fn drop_joins_hot_and_parked_threads() {
    for round in 0..200 {
        let pool = Pool::new(3);
        check_each_task_once(&pool, 5);
        if round % 20 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

/// CPU time of the threads called `name` so far, in clock ticks of 10 ms.
#[cfg(target_os = "linux")]
fn thread_ticks(name: &str) -> u64 {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        let (head, tail) = stat.rsplit_once(')').unwrap_or_default();
        if head.ends_with(name) {
            let fields: Vec<&str> = tail.split_whitespace().collect();
            ticks += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    ticks
}

#[test]
#[cfg(target_os = "linux")]
fn idle_workers_use_no_cpu() {
    // No other test has a pool this large, so the name is unique in the process.
    let pool = Pool::new(40);
    check_each_task_once(&pool, 1000);
    std::thread::sleep(Duration::from_millis(100));
    let before = thread_ticks("cpu-39");
    std::thread::sleep(Duration::from_millis(500));
    assert!(thread_ticks("cpu-39") - before <= 1, "an idle worker spins");
}

#[test]
fn tiles_cover_the_matrix_once() {
    for n_threads in [1, 3] {
        let pool = Pool::new(n_threads);
        for (n_rows, row_lens) in [
            (1, vec![1]),
            (1, vec![100, 3]),
            (7, vec![33, 1, 64]),
            (64, vec![5]),
        ] {
            for (rows_per_task, cols_per_task) in [(1, 1), (2, 16), (3, 1000), (usize::MAX, 8)] {
                let mut outs: Vec<Vec<f32>> =
                    row_lens.iter().map(|n| vec![0.0; n_rows * n]).collect();
                let matrices = outs.iter_mut().zip(&row_lens);
                let matrices = matrices.map(|(values, row_len)| MatrixMut {
                    values,
                    row_len: *row_len,
                });
                let matrices = matrices.collect();
                pool.for_each_tile(matrices, rows_per_task, cols_per_task, &|i, tile| {
                    for r in tile.rows() {
                        let cols = tile.cols();
                        for (x, c) in tile.row(r).iter_mut().zip(cols) {
                            *x += (1000 * i + r * row_lens[i] + c + 1) as f32;
                        }
                    }
                });
                for (m, out) in outs.iter().enumerate() {
                    for (i, &x) in out.iter().enumerate() {
                        assert_eq!(x, (1000 * m + i + 1) as f32);
                    }
                }
            }
        }
    }
}

#[test]
fn ranges_cover_their_rows_once() {
    for n_threads in [1, 3] {
        let pool = Pool::new(n_threads);
        for cols_per_task in [1, 4, 7, 100] {
            let ranges = [12..15, 0..4, 6..6, 4..5];
            let mut out = vec![0.0f32; 16 * 7];
            pool.for_each_range(&mut out, 7, &ranges, cols_per_task, &|i, tile| {
                assert_eq!(tile.rows(), ranges[i]);
                for r in tile.rows() {
                    tile.row(r).iter_mut().for_each(|x| *x += (i + 1) as f32);
                }
            });
            for (r, row) in out.chunks(7).enumerate() {
                let range = ranges.iter().position(|range| range.contains(&r));
                let want = range.map_or(0.0, |i| (i + 1) as f32);
                assert!(row.iter().all(|&x| x == want), "row {r}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "ranges do not overlap")]
fn rejects_overlapping_ranges() {
    Pool::new(2).for_each_range(&mut [0.0; 8], 1, &[4..8, 0..5], 1, &|_, _| {});
}

#[test]
#[should_panic(expected = "ranges lie in the matrix")]
fn rejects_ranges_outside_the_matrix() {
    Pool::new(2).for_each_range(&mut [0.0; 8], 1, &[4..9, 0..1], 1, &|_, _| {});
}

#[test]
fn an_empty_matrix_has_no_tasks() {
    let pool = Pool::new(2);
    pool.for_each_rows::<f32>(&mut [], 4, 1, &|_, _| panic!("no task"));
    pool.for_each_tile(vec![], 1, 1, &|_, _| panic!("no task"));
    let empty = MatrixMut {
        values: &mut [],
        row_len: 4,
    };
    pool.for_each_tile(vec![empty], 1, 1, &|_, _| panic!("no task"));
}
