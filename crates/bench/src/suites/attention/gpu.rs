//! Attention on a GPU: the rows of a case as a step in device memory.

use rocmforge_gpu::ops::{self, AttentionScratch, Queries, Scores};
use rocmforge_gpu::{Buffer, Gpu, KvLayer, KvShape, KvType, SeqRows, Slice, Step};
use rocmforge_plan::Mask;

use super::{Data, Kind, Layout, PAGE, Shape, paged};
use crate::case::{Prepared, time_gpu};
use crate::error::BenchError;

/// The rows of a step with sequence and position, and the pages of the sequences.
pub(crate) struct GpuStep {
    positions: Buffer,
    slots: Buffer,
    seq_of_row: Buffer,
    seqs: Buffer,
    block_tables: Buffer,
    n_pages: usize,
    max_rows: usize,
}

impl GpuStep {
    /// `spans` has the first row, number of rows and first position of each sequence. All sequences use the pages of
    /// `table`.
    pub(crate) fn new(
        gpu: &Gpu,
        spans: &[[usize; 3]],
        table: &[u32],
        page: usize,
    ) -> Result<GpuStep, BenchError> {
        let (mut positions, mut slots, mut seq_of_row) = (Vec::new(), Vec::new(), Vec::new());
        let mut seqs = Vec::new();
        for (seq, &[first_row, n_rows, first_pos]) in spans.iter().enumerate() {
            seqs.push(SeqRows {
                first_row: first_row as u32,
                n_rows: n_rows as u32,
                first_pos: first_pos as u32,
                pad: 0,
            });
            for pos in first_pos..first_pos + n_rows {
                positions.push(pos as u32);
                slots.push(table[pos / page] * page as u32 + (pos % page) as u32);
                seq_of_row.push(seq as u32);
            }
        }
        Ok(GpuStep {
            positions: gpu.upload(&positions)?,
            slots: gpu.upload(&slots)?,
            seq_of_row: gpu.upload(&seq_of_row)?,
            seqs: gpu.upload(&seqs)?,
            block_tables: gpu.upload(&table.repeat(spans.len()))?,
            n_pages: table.len(),
            max_rows: spans.iter().map(|span| span[1]).max().unwrap_or(0),
        })
    }

    pub(crate) fn step(&self) -> Step<'_> {
        Step {
            positions: self.positions.as_slice(),
            slots: self.slots.as_slice(),
            seq_of_row: self.seq_of_row.as_slice(),
            seqs: self.seqs.as_slice(),
            block_tables: self.block_tables.as_slice(),
            max_pages: self.n_pages,
            max_rows_of_seq: self.max_rows,
            longest: usize::MAX,
        }
    }
}

pub(super) fn prepare(
    gpu: &Gpu,
    kind: Kind,
    shape: Shape,
    data: Data,
) -> Result<Prepared<'_>, BenchError> {
    let layout = Layout::new(kind, &shape);
    let q = gpu.upload(&layout.rows(&shape, &data.q))?;
    let cache = [
        gpu.upload(&paged(&shape, &data.k))?,
        gpu.upload(&paged(&shape, &data.v))?,
    ];
    let kv_shape = KvShape {
        types: KvType::F16.into(),
        n_blocks: shape.n / PAGE,
        n_kv_heads: shape.n_heads,
        page: PAGE,
        k_dim: shape.dim,
        v_dim: shape.dim,
        values: rocmforge_plan::Values::Apart,
    };
    let table: Vec<u32> = (0..(shape.n / PAGE) as u32).collect();
    let spans = layout.seqs(kind, &shape);
    let step = GpuStep::new(gpu, &spans, &table, PAGE)?;
    let scratch = AttentionScratch::new(
        gpu,
        KvType::F16.into(),
        spans.len(),
        layout.n_heads,
        shape.dim,
        shape.n,
    )?;
    let out = gpu.alloc::<f32>(shape.len())?;
    let scores = Scores {
        scale: shape.scale(),
        soft_cap: None,
        growth: None,
        alibi: None,
        mask: Mask::All,
    };
    let prepared = Prepared::new(shape.work(kind), move |n| {
        let out: Slice<'_, f32> = out.as_slice();
        let kv = KvLayer::new(kv_shape, &cache);
        time_gpu(gpu, n, || {
            let queries = Queries {
                q: q.as_slice(),
                n_heads: layout.n_heads,
                scores,
                sinks: None,
                out,
            };
            ops::attention(gpu, &queries, &kv, &step.step(), &scratch)
        })
    });
    Ok(
        match (
            ops::is_fast(
                shape.dim,
                shape.dim,
                rocmforge_plan::Values::Apart,
                ops::RowKind::Plain,
            ),
            kind,
        ) {
            (false, _) => prepared.note(format!(
                "slow path: no kernel for heads of {} values; the general one computes row by row",
                shape.dim
            )),
            (true, Kind::Flash) => {
                prepared.note("computed by the decode kernel; the prefill kernel is causal")
            }
            (true, _) => prepared,
        },
    )
}
