//! Activations for tests: quantized by plain loops, on the device and as numbers.

use half::f16;
use rocmforge_gpu::{ActFormat, Acts, Buffer, Gpu};

/// Activations `[n_rows, width]` in one of the forms.
pub(crate) struct TestActs {
    form: ActFormat,
    n_rows: usize,
    width: usize,
    /// The values that the device multiplies with.
    pub(crate) exact: Vec<f64>,
    values: Buffer,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
}

impl TestActs {
    pub(crate) fn new(gpu: &Gpu, form: ActFormat, width: usize, x: &[f32]) -> TestActs {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let mut exact: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        if form != ActFormat::F32 {
            for (i, x) in x.chunks_exact(form.block_len()).enumerate() {
                let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let (scale, factor) = match form {
                    _ if largest == 0.0 => (0.0, 0.0),
                    ActFormat::Q8x32 => {
                        let scale = largest / 127.0;
                        (f16::from_f32(scale).to_f32(), 1.0 / scale)
                    }
                    _ => (1.0 / (127.0 / largest), 127.0 / largest),
                };
                scales.push(scale);
                for (j, x) in x.iter().enumerate() {
                    let code = (x * factor).round_ties_even() as i8;
                    codes.push(code);
                    exact[i * form.block_len() + j] = f64::from(code) * f64::from(scale);
                }
            }
        }
        let sums: Vec<i16> = codes
            .chunks_exact(16)
            .map(|codes| codes.iter().map(|&code| i16::from(code)).sum())
            .collect();
        let values = if form == ActFormat::F32 { x } else { &[] };
        TestActs {
            form,
            n_rows: x.len() / width,
            width,
            exact,
            values: gpu.upload(values).unwrap(),
            codes: gpu.upload(&codes).unwrap(),
            scales: gpu.upload(&scales).unwrap(),
            sums: gpu.upload(&sums).unwrap(),
        }
    }

    pub(crate) fn acts(&self) -> Acts<'_> {
        Acts {
            form: self.form,
            n_rows: self.n_rows,
            width: self.width,
            values: self.values.as_slice(),
            codes: self.codes.as_slice(),
            scales: self.scales.as_slice(),
            sums: self.sums.as_slice(),
            half: None,
            source: None,
        }
    }
}
