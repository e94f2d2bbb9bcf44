//! Measures how fast the matrices of a file reach a device: each stage of [`Uploader::repack`] alone, and all stages
//! together, which overlap.
//!
//! Usage: `load_stages DEVICE FILE [RUNS]`, e.g. `cuda:0 model.gguf 5`. The file is read once before measuring, so that
//! it is in the page cache if that is large enough. Each run maps it again, as a model load does.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use rocmforge_gguf::{Gguf, LoadMode, TensorInfo};
use rocmforge_gpu::{
    Buffer, Event, Gpu, Matrix, OpenOptions, Pinned, RowOrder, Uploader, chunk_bytes, ops,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A matrix of the file and its memory on the device.
struct Packed {
    name: String,
    ty: rocmforge_gguf::GgmlType,
    shape: [usize; 2],
    data: Buffer,
}

impl Packed {
    /// Returns `None` for vectors and formats without kernels.
    fn new(gpu: &Gpu, info: &TensorInfo) -> Option<Packed> {
        let &[n_in, n_out] = &info.dims[..] else {
            return None;
        };
        let shape = [n_out as usize, n_in as usize];
        let n_bytes = ops::packed_bytes(gpu, info.ty, shape[0], shape[1]).ok()?;
        Some(Packed {
            name: info.name.clone(),
            ty: info.ty,
            shape,
            data: gpu.alloc::<u8>(n_bytes).ok()?,
        })
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix {
            ty: self.ty,
            n_out: self.shape[0],
            n_in: self.shape[1],
            order: RowOrder::Apart,
            data: self.data.as_slice(),
        }
    }

    fn blocks<'a>(&self, gguf: &'a Gguf) -> &'a [u8] {
        let info = gguf.tensor(&self.name).expect("the file has not changed");
        gguf.tensor_data(info)
    }

    /// Returns the chunks that [`Uploader::repack`] copies.
    fn chunks<'a>(&self, gguf: &'a Gguf) -> impl Iterator<Item = &'a [u8]> {
        self.blocks(gguf).chunks(chunk_bytes(self.ty, self.shape))
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, file, runs @ ..] = &args[..] else {
        return Err("expected DEVICE FILE [RUNS]".into());
    };
    let n_runs = runs.first().map_or(Ok(5), |n| n.parse::<usize>())?.max(1);
    let gpu = Gpu::open_with(device.parse()?, &OpenOptions::from_env())?;
    let open = || Gguf::open(Path::new(file), LoadMode::Mmap);

    let gguf = open()?;
    let tensors = gguf.tensors().iter();
    let matrices: Vec<Packed> = tensors.filter_map(|info| Packed::new(&gpu, info)).collect();
    let n_bytes: usize = matrices.iter().map(|m| m.blocks(&gguf).len()).sum();
    let chunks = matrices.iter().map(|m| chunk_bytes(m.ty, m.shape));
    let most = chunks
        .max()
        .ok_or("the file has no matrices for this device")?;
    let mut host = Pinned::<u8>::new(&gpu, most)?;
    let staged = gpu.alloc::<u8>(most)?;

    // File to pinned memory.
    let mut read = || {
        let gguf = open()?;
        let started = Instant::now();
        for matrix in &matrices {
            matrix.chunks(&gguf).for_each(|chunk| host.write(chunk));
        }
        Ok(started.elapsed().as_secs_f64())
    };
    read()?;
    let read = median(n_runs, &mut read)?;
    let (start, end) = (Event::new(&gpu)?, Event::new(&gpu)?);
    let on_device = |queue: &dyn Fn() -> Result<()>| {
        start.record()?;
        queue()?;
        end.record()?;
        end.wait()?;
        Ok(f64::from(end.elapsed_ms(&start)?) / 1e3)
    };
    let copy = median(n_runs, &mut || {
        on_device(&|| {
            for chunk in matrices.iter().flat_map(|m| m.chunks(&gguf)) {
                gpu.write_pinned(staged.as_slice().part(0..chunk.len()), &host)?;
            }
            Ok(())
        })
    })?;
    let repack = median(n_runs, &mut || {
        on_device(&|| {
            for matrix in &matrices {
                let mut first_row = 0;
                for chunk in matrix.chunks(&gguf) {
                    let blocks = staged.as_slice().part(0..chunk.len());
                    ops::repack(&gpu, blocks, &matrix.matrix(), first_row)?;
                    first_row += chunk.len() / matrix.ty.row_bytes(matrix.shape[1]).unwrap_or(1);
                }
            }
            Ok(())
        })
    })?;
    let together = median(n_runs, &mut || {
        let gguf = open()?;
        let started = Instant::now();
        let mut uploader = Uploader::new(&gpu, most)?;
        for matrix in &matrices {
            uploader.repack(matrix.blocks(&gguf), &matrix.matrix())?;
        }
        uploader.finish()?;
        Ok(started.elapsed().as_secs_f64())
    })?;

    let stages = [
        ("file to pinned memory", read),
        ("pinned memory to device", copy),
        ("repacking on the device", repack),
        ("all together", together),
    ];
    println!(
        "{} matrices, {:.2} GB, {}, median of {n_runs}",
        matrices.len(),
        n_bytes as f64 / 1e9,
        gpu.info()?.name
    );
    println!("{:<26} {:>9} {:>9}", "stage", "ms", "GB/s");
    for (name, seconds) in stages {
        let gb_s = n_bytes as f64 / seconds / 1e9;
        println!("{name:<26} {:>9.1} {gb_s:>9.1}", seconds * 1e3);
    }
    let slowest = read.max(copy).max(repack);
    let sum = read + copy + repack;
    println!(
        "one after the other {:.1} ms; together {:.1} ms, {:.2} times the slowest stage",
        sum * 1e3,
        together * 1e3,
        together / slowest
    );
    Ok(())
}

/// Returns the median time of `n` runs in seconds.
fn median(n: usize, run: &mut dyn FnMut() -> Result<f64>) -> Result<f64> {
    let mut seconds = (0..n).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[n / 2])
}
