//! Measures the peak rates of the machine: the ceilings of the roofline model (Williams, Waterman and Patterson 2009).
//!
//! All threads read memory in long streams. Arithmetic runs independent chains of the instructions that the kernels
//! use, on values in registers. Each number is the best of several passes, so a moment of other load does not lower it.

use std::collections::HashSet;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

use rocmforge_plan::Roofline;

use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// Passes over the memory and the chains.
const N_PASSES: usize = 5;
/// Bytes per task, and bytes timed together: short enough to fit between other uses of the processor.
const TASK_BYTES: usize = 1 << 20;
const TIMED_BYTES: usize = 32 << 20;
/// Tasks per thread, so that a thread that wakes late does not hold up the pass.
const TASKS_PER_THREAD: usize = 4;
/// Steps of a chain in a task: about a millisecond.
const CHAIN_STEPS: usize = 400_000;
const MIN_BUFFER_BYTES: usize = 256 << 20;
const MAX_BUFFER_BYTES: usize = 1 << 30;

/// Measures the peak rates of `n_threads` threads for a few tenths of a second, with a buffer of twice the caches
/// (256 MiB to 1 GiB).
pub fn measure_roofline(isa: Isa, n_threads: usize) -> Roofline {
    let pool = &Pool::new(n_threads);
    Roofline {
        f32_ops_per_s: arithmetic(pool, N_PASSES, &|| f32_chains(isa)),
        i8_ops_per_s: integer_or_float(isa, pool, N_PASSES),
        read_bytes_per_s: read_bandwidth(isa, pool),
    }
}

/// Returns the int8 operations per second of all threads, or those in f32 without vector instructions.
fn integer_or_float(isa: Isa, pool: &Pool, n_passes: usize) -> f64 {
    match isa.vector() {
        None => arithmetic(pool, n_passes, &|| f32_chains(isa)),
        Some(isa) => arithmetic(pool, n_passes, &|| isa.run(I8Chains::new())),
    }
}

/// Returns the time of the shortest of `n` passes, in seconds.
fn shortest(n: usize, mut pass: impl FnMut()) -> f64 {
    let times = (0..n).map(|_| {
        let started = Instant::now();
        pass();
        started.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

fn read_bandwidth(isa: Isa, pool: &Pool) -> f64 {
    let caches = last_level_cache_bytes().saturating_mul(2);
    let mut reads = Reads::new(pool, caches.clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES));
    let n_passes = N_PASSES * reads.n_parts();
    let seconds = shortest(n_passes, || reads.pass(isa, pool));
    TIMED_BYTES as f64 / seconds
}

/// Memory that is read part by part. A part comes again only after all others, so none is in a cache.
struct Reads {
    buffer: Vec<f32>,
    next: usize,
}

impl Reads {
    fn new(pool: &Pool, n_bytes: usize) -> Reads {
        let n_bytes = n_bytes / TIMED_BYTES * TIMED_BYTES;
        let mut buffer = vec![0f32; n_bytes / size_of::<f32>()];
        // Written by all threads, so that pages are near the threads that read them.
        let per_task = TASK_BYTES / size_of::<f32>();
        pool.for_each_rows(&mut buffer, per_task, 1, &|_, part| part.fill(1.0));
        Reads { buffer, next: 0 }
    }

    fn n_parts(&self) -> usize {
        self.buffer.len() * size_of::<f32>() / TIMED_BYTES
    }

    /// Reads [`TIMED_BYTES`] with all threads.
    fn pass(&mut self, isa: Isa, pool: &Pool) {
        let per_task = TASK_BYTES / size_of::<f32>();
        let per_part = TIMED_BYTES / size_of::<f32>();
        let part = &self.buffer[self.next * per_part..][..per_part];
        self.next = (self.next + 1) % self.n_parts();
        pool.run(TIMED_BYTES / TASK_BYTES, &|task| {
            let part = &part[task * per_task..(task + 1) * per_task];
            black_box(match isa.vector() {
                // The fixed order of an f32 sum would keep the compiler from vectorizing.
                None => part.iter().fold(0, |bits, x| bits | x.to_bits()) as f32,
                Some(isa) => isa.run(Sum { x: part }),
            });
        });
    }
}

/// Measures for a few milliseconds how fast the machine is at the moment. Clock rates, temperature and other programs
/// on a shared host change that.
pub struct Gauge {
    isa: Isa,
    pool: Pool,
    reads: Reads,
}

impl Gauge {
    /// Prepares a measurement with `n_threads` threads; takes 256 MiB.
    pub fn new(isa: Isa, n_threads: usize) -> Gauge {
        let pool = Pool::new(n_threads);
        Gauge {
            isa,
            reads: Reads::new(&pool, MIN_BUFFER_BYTES),
            pool,
        }
    }

    /// Returns the bytes read and the operations done per second.
    pub fn read(&mut self) -> [f64; 2] {
        let (isa, pool) = (self.isa, &self.pool);
        let seconds = shortest(1, || self.reads.pass(isa, pool));
        [TIMED_BYTES as f64 / seconds, integer_or_float(isa, pool, 1)]
    }
}

/// Returns the size of the last-level caches of all cores together; 0 if the system does not tell.
fn last_level_cache_bytes() -> usize {
    let read = |path: std::path::PathBuf| fs::read_to_string(path).ok();
    let Ok(cores) = fs::read_dir("/sys/devices/system/cpu") else {
        return 0;
    };
    let mut caches = HashSet::new();
    for core in cores.flatten() {
        let Ok(indexes) = fs::read_dir(core.path().join("cache")) else {
            continue;
        };
        for index in indexes.flatten() {
            let field = |name: &str| read(index.path().join(name));
            if let (Some(level), Some(size), Some(shared)) =
                (field("level"), field("size"), field("shared_cpu_list"))
                && let (Ok(level), Some(bytes)) = (level.trim().parse::<u32>(), cache_size(&size))
            {
                caches.insert((level, shared, bytes));
            }
        }
    }
    let last = caches.iter().map(|(level, ..)| *level).max();
    let of_last = caches.iter().filter(|(level, ..)| Some(*level) == last);
    of_last.fold(0, |sum, (.., bytes)| sum.saturating_add(*bytes))
}

/// Parses a size as sysfs writes it, e.g. `32768K`, to bytes.
fn cache_size(text: &str) -> Option<usize> {
    let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the operations per second of all threads; `task` performs some and returns their number.
fn arithmetic(pool: &Pool, n_passes: usize, task: &(dyn Fn() -> usize + Sync)) -> f64 {
    let n_tasks = TASKS_PER_THREAD * pool.n_threads();
    let n_ops = n_tasks * task();
    let seconds = shortest(n_passes, || {
        pool.run(n_tasks, &|_| {
            task();
        });
    });
    n_ops as f64 / seconds
}

fn f32_chains(isa: Isa) -> usize {
    // Values that stay near 1 for chains of any length.
    let [start, factor, addend] = black_box([1.0, 0.5, 0.5]);
    let chains = F32Chains {
        start,
        factor,
        addend,
    };
    match isa.vector() {
        None => chains.run_plain(),
        Some(isa) => isa.run(chains),
    }
}

/// Sums `x` in four streams, so that several prefetchers work.
struct Sum<'a> {
    x: &'a [f32],
}

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (chunks, _) = S::chunks(self.x);
        let len = chunks.len() / 4;
        let mut acc = [s.splat(0.0); 4];
        let (a, b) = chunks.split_at(2 * len);
        let ((a, b), (c, d)) = (a.split_at(len), b.split_at(len));
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            acc[0] = s.add(acc[0], s.load_chunk(a));
            acc[1] = s.add(acc[1], s.load_chunk(b));
            acc[2] = s.add(acc[2], s.load_chunk(c));
            acc[3] = s.add(acc[3], s.load_chunk(d));
        }
        s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
    }
}

/// Multiply-adds in enough independent chains to cover the latency of two units.
struct F32Chains {
    start: f32,
    factor: f32,
    addend: f32,
}

const N_F32_CHAINS: usize = 12;

impl Kernel for F32Chains {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let (factor, addend) = (s.splat(self.factor), s.splat(self.addend));
        let mut acc = [s.splat(self.start); N_F32_CHAINS];
        for _ in 0..CHAIN_STEPS {
            for acc in &mut acc {
                *acc = s.mul_add(*acc, factor, addend);
            }
        }
        let mut sum = s.splat(0.0);
        for acc in acc {
            sum = s.add(sum, acc);
        }
        black_box(s.sum(sum));
        2 * S::LANES * N_F32_CHAINS * CHAIN_STEPS
    }
}

impl F32Chains {
    /// The chains without any vector instruction set enabled.
    fn run_plain(self) -> usize {
        let mut acc = [self.start; 4 * N_F32_CHAINS];
        for _ in 0..CHAIN_STEPS {
            for acc in &mut acc {
                *acc = *acc * self.factor + self.addend;
            }
        }
        black_box(acc);
        2 * acc.len() * CHAIN_STEPS
    }
}

/// Dot products of bytes. The activations come from the L1 cache, a different vector at each step, because otherwise
/// the compiler would compute the products only once.
struct I8Chains {
    codes: [[u8; 16]; 8],
    acts: [[i8; 16]; 16],
}

impl I8Chains {
    /// Creates values unknown to the compiler.
    fn new() -> I8Chains {
        I8Chains {
            codes: black_box(std::array::from_fn(|i| [i as u8; 16])),
            acts: black_box([[1; 16]; 16]),
        }
    }
}

impl Kernel for I8Chains {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let mut codes = [s.zero(); 8];
        for (vector, codes) in codes.iter_mut().zip(&self.codes) {
            *vector = s.repeat_u8(codes);
        }
        let mut sums = [s.zero_dot(); 8];
        for step in 0..CHAIN_STEPS {
            let acts = s.repeat_i8(&self.acts[step % 16]);
            for j in 0..8 {
                sums[j] = s.dot(sums[j], codes[j], acts);
            }
        }
        let mut total = s.zero_i32();
        for sum in sums {
            total = s.add_dot(total, sum);
        }
        black_box(s.sum(s.to_f32(total)));
        // A vector has four bytes per f32 value.
        2 * 4 * S::LANES * 8 * CHAIN_STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_cache_sizes() {
        assert_eq!(cache_size("32768K\n"), Some(32 << 20));
        for bad in ["", "K", "12", "-1K", "99999999999999999999K"] {
            assert_eq!(cache_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn sum_reads_every_value() {
        for isa in Isa::available() {
            let Some(isa) = isa.vector() else { continue };
            let x: Vec<f32> = (0..4096).map(|i| (i % 7) as f32).collect();
            assert_eq!(isa.run(Sum { x: &x }), x.iter().sum::<f32>());
        }
    }

    #[test]
    fn measures_every_instruction_set() {
        for isa in Isa::available() {
            let roofline = measure_roofline(isa, 2);
            for rate in [
                roofline.read_bytes_per_s,
                roofline.f32_ops_per_s,
                roofline.i8_ops_per_s,
            ] {
                assert!(rate.is_finite() && rate > 0.0, "{isa}: {roofline:?}");
            }
            let speeds = Gauge::new(isa, 2).read();
            let is_rate = |rate: &f64| rate.is_finite() && *rate > 0.0;
            assert!(speeds.iter().all(is_rate), "{isa}: {speeds:?}");
        }
    }
}
