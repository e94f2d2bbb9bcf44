//! Reads the KV cache through a page table: attention of one token over a long context, with pages of several sizes in
//! sequential order (as without a table) and in random order.

use rocmforge_cpu::{AttnInputs, AttnSeq, AttnShape, KvSlice, attention};
use rocmforge_gpu::ops::{self, AttentionScratch, Queries, Scores};
use rocmforge_gpu::{Buffer, Gpu, KvLayer, KvShape, KvType};
use rocmforge_plan::Mask;

use super::PAGES;
use crate::case::{Case, Prepared, Work, time_cpu, time_gpu};
use crate::error::BenchError;
use crate::options::Effort;
use crate::suites::attention::GpuStep;
use crate::target::{Cpu, Opened};
use crate::values::{Random, n_copies};

/// Attention heads of a layer of an 8B model.
const N_HEADS: usize = 32;
const N_KV_HEADS: usize = 8;
const DIM: usize = 128;
const N_LAYERS: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    InOrder,
    Scattered,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::InOrder => "in-order",
            Order::Scattered => "scattered",
        }
    }

    /// The pool page of each context page.
    fn table(self, n_pages: usize) -> Vec<u32> {
        let mut table: Vec<u32> = (0..n_pages as u32).collect();
        if self == Order::Scattered {
            let mut random = Random(6);
            for i in (1..n_pages).rev() {
                table.swap(i, random.below(i + 1));
            }
        }
        table
    }
}

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let n_ctx = effort.pick(4096, 128);
    let orders = [Order::InOrder, Order::Scattered];
    PAGES
        .into_iter()
        .flat_map(|page| orders.map(|order| case(effort, page, order, n_ctx)))
        .collect()
}

/// Keys or values of the context.
const fn n_values(n_ctx: usize) -> usize {
    n_ctx * N_KV_HEADS * DIM
}

fn case(effort: Effort, page: usize, order: Order, n_ctx: usize) -> Case {
    let name = format!("page-table/{n_ctx}/page-{page}/{}", order.name());
    let shape = format!("1 row, {n_ctx} positions, {N_HEADS}/{N_KV_HEADS} heads x {DIM}");
    Case::new(name, Some("F16"), shape, move |target| {
        let table = order.table(n_ctx / page);
        let kv_bytes = 2 * n_values(n_ctx) * size_of::<u16>();
        let n = n_copies(kv_bytes, effort);
        target.check_memory((n * kv_bytes) as u64)?;
        let table_bytes = size_of_val(&table[..]);
        let prepared = match &target.on {
            Opened::Cpu(cpu) => on_cpu(cpu, page, table, [n_ctx, n]),
            Opened::Gpu(gpu) => on_gpu(gpu, page, table, [n_ctx, n])?,
        };
        // All layers share the table.
        let share = table_bytes as f64 / (N_LAYERS * kv_bytes) as f64;
        Ok(prepared
            .metric("page_table_bytes", table_bytes as f64)
            .metric("page_table_share_of_kv", share))
    })
}

fn work(n_ctx: usize) -> Work {
    Work {
        bytes: (2 * n_values(n_ctx) * size_of::<u16>()) as u64,
        f32_ops: (4 * n_ctx * N_HEADS * DIM) as u64,
        tokens: 1,
        ..Work::default()
    }
}

fn on_cpu(cpu: &Cpu, page: usize, table: Vec<u32>, [n_ctx, n]: [usize; 2]) -> Prepared<'_> {
    let shape = AttnShape {
        n_heads: N_HEADS,
        n_kv_heads: N_KV_HEADS,
        k_dim: DIM,
        v_dim: DIM,
        k_hadamard: 1,
        v_hadamard: 1,
        page,
        scale: 1.0 / (DIM as f32).sqrt(),
        soft_cap: None,
        growth: None,
        alibi: None,
        mask: Mask::All,
    };
    let mut random = Random(7);
    let q = random.floats(N_HEADS * DIM);
    let one = [
        random.halves(n_values(n_ctx)),
        random.halves(n_values(n_ctx)),
    ];
    let copies = vec![one; n];
    let mut out = vec![0.0; N_HEADS * DIM];
    let mut i = 0;
    Prepared::new(work(n_ctx), move |n| {
        let seq = AttnSeq {
            first_row: 0,
            n_rows: 1,
            first_pos: n_ctx - 1,
            block_table: &table,
        };
        time_cpu(n, || {
            let [k, v] = &copies[i];
            i = (i + 1) % copies.len();
            let inputs = AttnInputs {
                q: &q,
                k: KvSlice::F16(k),
                v: Some(KvSlice::F16(v)),
                sinks: None,
            };
            attention(cpu.isa, &cpu.pool, &shape, inputs, &[seq], &mut out);
        })
    })
}

fn on_gpu(
    gpu: &Gpu,
    page: usize,
    table: Vec<u32>,
    [n_ctx, n]: [usize; 2],
) -> Result<Prepared<'_>, BenchError> {
    let mut random = Random(7);
    let q = gpu.upload(&random.floats(N_HEADS * DIM))?;
    let values = [
        random.halves(n_values(n_ctx)),
        random.halves(n_values(n_ctx)),
    ];
    let mut copies: Vec<[Buffer; 2]> = Vec::new();
    for _ in 0..n {
        copies.push([gpu.upload(&values[0])?, gpu.upload(&values[1])?]);
    }
    let step = GpuStep::new(gpu, &[[0, 1, n_ctx - 1]], &table, page)?;
    let scratch = AttentionScratch::new(gpu, KvType::F16.into(), 1, N_HEADS, DIM, n_ctx)?;
    let out = gpu.alloc::<f32>(N_HEADS * DIM)?;
    let scores = Scores {
        scale: 1.0 / (DIM as f32).sqrt(),
        soft_cap: None,
        growth: None,
        alibi: None,
        mask: Mask::All,
    };
    let kv_shape = KvShape {
        types: KvType::F16.into(),
        n_blocks: n_values(n_ctx) / (N_KV_HEADS * page * DIM),
        n_kv_heads: N_KV_HEADS,
        page,
        k_dim: DIM,
        v_dim: DIM,
        values: rocmforge_plan::Values::Apart,
    };
    let mut i = 0;
    Ok(Prepared::new(work(n_ctx), move |n| {
        time_gpu(gpu, n, || {
            let kv = KvLayer::new(kv_shape, &copies[i]);
            i = (i + 1) % copies.len();
            let queries = Queries {
                q: q.as_slice(),
                n_heads: N_HEADS,
                scores,
                sinks: None,
                out: out.as_slice(),
            };
            ops::attention(gpu, &queries, &kv, &step.step(), &scratch)
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_use_every_page_once() {
        for n_pages in [2, 256] {
            assert!(Order::InOrder.table(n_pages).is_sorted());
            let mut table = Order::Scattered.table(n_pages);
            assert!(n_pages == 2 || !table.is_sorted());
            table.sort_unstable();
            assert_eq!(table, Order::InOrder.table(n_pages));
        }
    }
}
