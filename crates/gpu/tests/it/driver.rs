//! Memory, events, graphs and uploads on every device.

use crate::common;
use rocmforge_gpu::{DeviceId, Event, Gpu, GpuError, Pinned, Uploader, ops};

fn ramp(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| i as f32 * step).collect()
}

#[test]
fn new_memory_is_nan_until_written() {
    for gpu in common::gpus() {
        let buffer = gpu.alloc::<f32>(100).unwrap();
        let values = gpu.read(buffer.as_slice::<f32>()).unwrap();
        assert!(values.iter().all(|v| v.is_nan()) || !matches!(gpu.id(), DeviceId::Host(_)));
        gpu.fill_bytes(buffer.as_slice::<f32>().part(10..20), 0)
            .unwrap();
        let values = gpu.read(buffer.as_slice::<f32>()).unwrap();
        assert_eq!(values[10..20], [0.0; 10]);
        let other = gpu.upload(&ramp(10, 1.0)).unwrap();
        gpu.copy(other.as_slice::<f32>(), buffer.as_slice().part(90..100))
            .unwrap();
        let values = gpu.read(buffer.as_slice::<f32>()).unwrap();
        assert_eq!(values[90..], ramp(10, 1.0));
        assert!(gpu.free_bytes().unwrap() <= gpu.total_bytes().unwrap());
    }
}

#[test]
fn out_of_memory_reports_sizes() {
    for gpu in common::gpus() {
        let error = gpu.alloc::<u8>(1 << 60).err().unwrap();
        let GpuError::OutOfMemory { bytes, total, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(bytes, 1 << 60);
        assert!(total > 0);
    }
}

#[test]
fn events_are_in_order() {
    for gpu in common::gpus() {
        let x = gpu.upload(&ramp(1000, 1.0)).unwrap();
        let (start, end) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
        start.record().unwrap();
        ops::add(&gpu, x.as_slice(), x.as_slice()).unwrap();
        end.record().unwrap();
        end.wait().unwrap();
        assert!(start.is_done().unwrap() && end.is_done().unwrap());
        assert!(end.elapsed_ms(&start).unwrap() >= 0.0);
    }
}

/// `y += x`, recorded once and replayed twice. A graph keeps its buffers alive after their
/// owners drop them.
#[test]
fn graph_replays_recorded_launches() {
    for gpu in common::gpus() {
        let y = gpu.upload(&vec![1.0f32; 300]).unwrap();
        let x = gpu.upload(&ramp(300, 0.5)).unwrap();
        let graph = gpu
            .capture(|| ops::add(&gpu, x.as_slice(), y.as_slice()))
            .unwrap();
        assert_eq!(
            gpu.read(y.as_slice::<f32>()).unwrap(),
            vec![1.0; 300],
            "recorded, not run"
        );
        drop(x);
        let _other = gpu.upload(&vec![f32::NAN; 300]).unwrap();
        graph.launch().unwrap();
        graph.launch().unwrap();
        let expected: Vec<f32> = ramp(300, 1.0).iter().map(|x| x + 1.0).collect();
        assert_eq!(gpu.read(y.as_slice::<f32>()).unwrap(), expected);
    }
}

#[test]
fn recording_a_copy_is_an_error() {
    for gpu in common::gpus() {
        let y = gpu.upload(&vec![1.0f32; 300]).unwrap();
        let failed = gpu.capture(|| gpu.read(y.as_slice::<f32>()).map(|_| ()));
        assert!(failed.is_err());
        // The device still works.
        ops::add(&gpu, y.as_slice(), y.as_slice()).unwrap();
        assert_eq!(gpu.read(y.as_slice::<f32>()).unwrap(), vec![2.0; 300]);
    }
}

#[test]
fn host_and_device_share_pinned_memory() {
    for gpu in common::gpus() {
        let mut x = Pinned::<f32>::new(&gpu, 200).unwrap();
        assert_eq!(x.get(199), 0.0);
        x.write(&ramp(200, 2.0));
        x.set(0, 7.0);
        let y = gpu.upload(&vec![1.0f32; 200]).unwrap();
        // One kernel reads it in place, another writes it.
        ops::add(&gpu, x.device(), y.as_slice()).unwrap();
        ops::add(&gpu, y.as_slice(), x.device()).unwrap();
        gpu.synchronize().unwrap();
        assert_eq!([x.get(0), x.get(1), x.get(199)], [15.0, 5.0, 797.0]);
        // Copies in both directions.
        let copy = gpu.alloc::<f32>(100).unwrap();
        gpu.write_pinned(copy.as_slice(), &x).unwrap();
        let mut back = Pinned::<f32>::new(&gpu, 100).unwrap();
        gpu.read_pinned(copy.as_slice(), &mut back).unwrap();
        gpu.synchronize().unwrap();
        assert_eq!([back.get(0), back.get(99)], [15.0, x.get(99)]);
    }
}

#[test]
fn uploads_arrive_complete_and_in_order() {
    for gpu in common::gpus() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let target = gpu.alloc::<u8>(bytes.len()).unwrap();
        let mut uploader = Uploader::new(&gpu, 4096).unwrap();
        let chunks = bytes.chunks(uploader.chunk_bytes());
        uploader
            .upload_all(chunks, |i, chunk| {
                let first = i * 4096;
                gpu.copy(chunk, target.as_slice().part(first..first + chunk.len()))
            })
            .unwrap();
        uploader.finish().unwrap();
        assert_eq!(gpu.read(target.as_slice::<u8>()).unwrap(), bytes);
    }
}

/// Any thread may use a device, and several devices work at once.
#[test]
fn devices_work_from_several_threads() {
    std::thread::scope(|scope| {
        for gpu in common::all_gpus() {
            scope.spawn(move || {
                for _ in 0..3 {
                    let x = gpu.upload(&ramp(500, 1.0)).unwrap();
                    ops::add(&gpu, x.as_slice(), x.as_slice()).unwrap();
                    assert_eq!(gpu.read(x.as_slice::<f32>()).unwrap(), ramp(500, 2.0));
                }
            });
        }
    });
}

#[test]
fn unknown_images_are_errors() {
    assert!(matches!(Gpu::host("gfx9"), Err(GpuError::NoImage { .. })));
}
