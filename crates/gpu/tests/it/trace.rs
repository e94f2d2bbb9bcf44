//! Traces record the launches of their thread and device in order.

use std::time::{Duration, Instant};

use crate::common::{all_gpus, gpus};
use rocmforge_gpu::{Event, GpuError, Trace, n_traced, ops};

#[test]
fn records_launches_in_order() {
    for gpu in gpus() {
        let origin = Event::new(&gpu).unwrap();
        origin.record().unwrap();
        let x = gpu.upload(&[1f32; 64]).unwrap();
        let x = x.as_slice::<f32>();
        let mut trace = Trace::new(&gpu);
        assert!(trace.is_empty() && trace.times(&origin).unwrap().is_empty());
        // A trace is reusable, here with fewer launches.
        for n_adds in [3, 1] {
            ops::add(&gpu, x, x).unwrap();
            assert_eq!(n_traced(), 0);
            let before = Instant::now();
            let work = || {
                for n in 0..n_adds {
                    ops::add(&gpu, x, x)?;
                    assert_eq!(n_traced(), n + 1);
                }
                ops::soft_cap(&gpu, 30.0, x)
            };
            trace.record(work).unwrap();
            gpu.synchronize().unwrap();
            let wall = before.elapsed();
            let times = trace.times(&origin).unwrap();
            let kernels: Vec<&str> = times.iter().map(|time| time.kernel).collect();
            let mut expected = vec!["add"; n_adds];
            expected.push("soft_cap");
            assert_eq!(kernels, expected);
            assert!(times.iter().all(|time| time.module == "elementwise"));
            assert!(
                times
                    .iter()
                    .all(|time| time.queued >= before && time.submit <= wall)
            );
            for pair in times.windows(2) {
                assert_eq!(pair[0].start + pair[0].duration, pair[1].start);
                assert!(pair[0].queued + pair[0].submit <= pair[1].queued);
            }
            let total: Duration = times.iter().map(|time| time.duration).sum();
            assert!(total <= wall, "{total:?} of {wall:?}");
        }
    }
}

#[test]
fn excludes_other_devices_and_threads() {
    let gpus = all_gpus();
    let [gpu, other, ..] = &gpus[..] else {
        println!("skipped: built for fewer than two personas");
        return;
    };
    let on_other = other.upload(&[1f32; 8]).unwrap();
    let origin = Event::new(gpu).unwrap();
    origin.record().unwrap();
    let mut trace = Trace::new(gpu);
    let work = || {
        ops::add(other, on_other.as_slice(), on_other.as_slice())?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let x = gpu.upload(&[1f32; 8])?;
                ops::add(gpu, x.as_slice(), x.as_slice())
            });
            thread.join().unwrap()
        })
    };
    trace.record(work).unwrap();
    assert!(trace.is_empty());
}

#[test]
fn failed_work_leaves_no_trace() {
    for gpu in gpus() {
        let x = gpu.upload(&[1f32; 8]).unwrap();
        let mut trace = Trace::new(&gpu);
        let failed = trace.record(|| {
            ops::add(&gpu, x.as_slice(), x.as_slice())?;
            Err(GpuError::NoImage {
                target: "none".to_string(),
            })
        });
        assert!(failed.is_err() && trace.is_empty());
        assert_eq!(n_traced(), 0);
    }
}
