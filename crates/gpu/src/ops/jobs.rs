//! The jobs of a launch (`kernels/jobs.h`): products of matrices with rows of activations, for GEMV and GEMM alike.

use rocmforge_plan::act_format;
use zerocopy::{Immutable, IntoBytes};

use super::routing::buffer::{ExpertTile, Routing};
use super::rows::{Weights, planes};
use crate::kernel::{Count, Table, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Activation, Acts, ExpertMatrices, Matrix, OutMode};

/// Maximum number of jobs in the parameters of a launch.
pub(super) const FEW: usize = 3;

/// A product `out = x * matrix + bias`, stored or added.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub matrix: Matrix<'a>,
    /// `[n_out]`.
    pub bias: Option<Slice<'a, f32>>,
    pub mode: OutMode,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}

/// Two products combined by a gate, `out = activation(x * gate + biases[0]) * (x * up + biases[1])`.
#[derive(Clone, Copy)]
pub struct Gated<'a> {
    /// Gate and up, of the same shape and of any formats.
    pub matrices: [Matrix<'a>; 2],
    /// `[n_out]` each.
    pub biases: [Option<Slice<'a, f32>>; 2],
    pub activation: Activation,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}

/// Products with the matrices of experts, `x[row] * matrix * scale + bias`, each of the row's expert.
#[derive(Clone, Copy)]
pub struct ExpertProduct<'a> {
    pub matrices: ExpertMatrices<'a>,
    /// `[n_experts]`.
    pub scales: Option<Slice<'a, f32>>,
    /// `[n_experts, n_out]`.
    pub bias: Option<Slice<'a, f32>>,
    /// The matrix of the expert after these, a shared one, of the same format, shape and order of rows. Then there are no
    /// scales and no biases.
    pub shared: Option<Matrix<'a>>,
}

/// What happens to the result of a product: `Mode` in jobs.h.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Mode {
    Store = 0,
    Add = 1,
    GateSilu = 2,
    GateGeluTanh = 3,
    /// 4 is the bit `ROWS_FIRST`.
    GateSwigluOai = 8,
}

impl From<OutMode> for Mode {
    fn from(mode: OutMode) -> Mode {
        match mode {
            OutMode::Store => Mode::Store,
            OutMode::Add => Mode::Add,
        }
    }
}

impl Mode {
    /// # Panics
    /// If the activation does not join products.
    pub(super) fn of_gate(activation: Activation) -> Mode {
        match activation {
            Activation::Silu => Mode::GateSilu,
            Activation::GeluTanh => Mode::GateGeluTanh,
            Activation::SwigluOai => Mode::GateSwigluOai,
            other => panic!("{other:?} does not join products"),
        }
    }
}

/// What a job computes, whichever kernel does it.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) x: Acts<'a>,
    /// Of an MoE layer: the first expert's.
    pub(super) matrix: Matrix<'a>,
    /// Of an MoE layer: those of all experts.
    pub(super) bias: Option<Slice<'a, f32>>,
    /// Of an MoE layer: a factor on the products of each expert, `[n_experts]`.
    pub(super) scales: Option<Slice<'a, f32>>,
    /// Of an MoE layer: the matrix of its shared expert.
    pub(super) shared: Option<Matrix<'a>>,
    /// Up, if this is a gated product: of the same format, shape and order of rows as `matrix`, which is the gate.
    pub(super) up: Option<Up<'a>>,
    pub(super) mode: Mode,
    pub(super) out: Slice<'a, f32>,
    /// Of an MoE layer.
    pub(super) experts: Option<Experts<'a>>,
    pub(super) places: Places,
}

/// Where the rows of a product are in its output, in floats: row `r` of expert `e` begins at `r * stride + e * skip`.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) stride: usize,
    pub(super) skip: i64,
}

/// The other side of a gated product.
#[derive(Clone, Copy)]
pub(super) struct Up<'a> {
    matrix: Matrix<'a>,
    bias: Option<Slice<'a, f32>>,
    scales: Option<Slice<'a, f32>>,
    shared: Option<Matrix<'a>>,
}

/// Which expert's matrix each row is multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Experts<'a> {
    pub(super) routing: Routing<'a>,
    /// Bytes from an expert's matrix to the next one's.
    pub(super) n_bytes: usize,
    /// How many experts' matrices follow one another; that of a shared expert is apart.
    pub(super) n_stacked: usize,
}

impl<'a> Work<'a> {
    /// # Panics
    /// If a shape does not match, or `x` does not have the form that the weights take.
    pub(super) fn new(x: &Acts<'a>, product: &Product<'a>) -> Work<'a> {
        let work = Work {
            x: *x,
            matrix: product.matrix,
            bias: product.bias,
            scales: None,
            shared: None,
            up: None,
            mode: product.mode.into(),
            out: product.out,
            experts: None,
            places: Places {
                stride: product.matrix.n_out,
                skip: 0,
            },
        };
        work.check();
        work
    }

    /// The product of the rows of each expert with that expert's matrix.
    ///
    /// # Panics
    /// As [`Work::new`].
    pub(super) fn of_experts(
        x: &Acts<'a>,
        routing: &Routing<'a>,
        &ExpertProduct {
            matrices,
            scales,
            bias,
            shared,
        }: &ExpertProduct<'a>,
        out: Slice<'a, f32>,
    ) -> Work<'a> {
        let n_experts = matrices.stack.n_experts;
        let n_shared = usize::from(shared.is_some());
        assert_eq!(
            n_experts + n_shared,
            routing.n_experts,
            "a matrix per expert"
        );
        if let Some(shared) = &shared {
            assert_eq!(
                (shared.ty, [shared.n_out, shared.n_in], shared.order),
                (matrices.ty, [matrices.n_out, matrices.n_in], matrices.order),
                "the shared expert's matrix is like the others"
            );
            assert!(scales.is_none() && bias.is_none(), "only products");
        }
        let n_biases = n_experts * matrices.n_out;
        assert!(
            bias.is_none_or(|bias| bias.len() == n_biases),
            "bias is [n_experts, n_out]"
        );
        assert!(
            scales.is_none_or(|scales| scales.len() == n_experts),
            "scales are [n_experts]"
        );
        assert_eq!(x.n_rows, routing.max_rows(), "one row per choice");
        let product = Product {
            matrix: matrices.matrix(0),
            bias: None,
            mode: OutMode::Store,
            out,
        };
        Work {
            bias,
            scales,
            shared,
            experts: Some(Experts {
                routing: *routing,
                n_bytes: matrices.expert_bytes(),
                n_stacked: n_experts,
            }),
            ..Work::new(x, &product)
        }
    }

    /// The product of each head of `x` with the head's matrix, into rows of tokens: `out` [n_tokens, n_heads * dim], of
    /// whose heads it writes the first values.
    ///
    /// # Panics
    /// As [`Work::new`].
    pub(super) fn of_heads(
        x: &Acts<'a>,
        routing: &Routing<'a>,
        matrices: ExpertMatrices<'a>,
        out: Slice<'a, f32>,
    ) -> Work<'a> {
        let (n_rows, n_heads) = (routing.max_rows(), routing.n_experts);
        let dim = out.len() / n_rows.max(1);
        assert!(
            out.len() == n_rows * dim && matrices.n_out <= dim,
            "heads of {dim} values for products of {}",
            matrices.n_out
        );
        let product = ExpertProduct {
            matrices,
            scales: None,
            bias: None,
            shared: None,
        };
        let first = out.part(0..n_rows * matrices.n_out);
        // Row `head * n_tokens + token` belongs at `token * n_heads + head`.
        let stride = n_heads * dim;
        Work {
            places: Places {
                stride,
                skip: dim as i64 - (routing.n_tokens * stride) as i64,
            },
            ..Work::of_experts(x, routing, &product, first)
        }
    }

    /// Whether both matrices have the same format and order of rows, and those of experts lie alike.
    pub(super) fn is_like(&self, other: &Work<'_>) -> bool {
        let kind = |work: &Work<'_>| {
            let stack = work
                .experts
                .map(|experts| [experts.n_bytes, experts.n_stacked]);
            (
                work.matrix.ty,
                work.matrix.order,
                stack,
                work.shared.is_some(),
            )
        };
        kind(self) == kind(other)
    }

    /// The gated product of this gate and an up like it.
    pub(super) fn with_up(&self, up: &Work<'a>, mode: Mode) -> Work<'a> {
        Work {
            up: Some(Up {
                matrix: up.matrix,
                bias: up.bias,
                scales: up.scales,
                shared: up.shared,
            }),
            mode,
            ..*self
        }
    }

    /// The product of up, if this is a gated product.
    pub(super) fn of_up(&self) -> Option<Work<'a>> {
        self.up.map(|up| Work {
            matrix: up.matrix,
            bias: up.bias,
            scales: up.scales,
            shared: up.shared,
            up: None,
            ..*self
        })
    }

    /// Gate and up of a gated product.
    ///
    /// # Panics
    /// As [`Work::new`]; also if the matrices have different shapes.
    pub(super) fn gate_and_up(x: &Acts<'a>, gated: &Gated<'a>) -> [Work<'a>; 2] {
        let [gate, up] = gated.matrices;
        assert_eq!(
            (gate.n_out, gate.n_in),
            (up.n_out, up.n_in),
            "gate and up differ in shape"
        );
        [0, 1].map(|i| {
            let product = Product {
                matrix: gated.matrices[i],
                bias: gated.biases[i],
                mode: OutMode::Store,
                out: gated.out,
            };
            Work::new(x, &product)
        })
    }

    fn check(&self) {
        let Work {
            x,
            matrix,
            bias,
            out,
            ..
        } = self;
        assert!(matrix.n_in > 0 && matrix.n_out > 0, "the matrix is empty");
        assert_eq!(
            (x.form, x.width),
            (act_format(matrix.ty), matrix.n_in),
            "form and width of activations for {} weights",
            matrix.ty.name()
        );
        assert_eq!(out.len(), x.n_rows * matrix.n_out, "out is [n_rows, n_out]");
        assert!(
            bias.is_none_or(|bias| bias.len() == matrix.n_out),
            "bias is [n_out]"
        );
    }

    /// Returns a range of the rows.
    pub(super) fn part(&self, rows: std::ops::Range<usize>) -> Work<'a> {
        let n_out = self.matrix.n_out;
        Work {
            out: self.out.part(rows.start * n_out..rows.end * n_out),
            x: self.x.part(rows),
            ..*self
        }
    }

    /// Matrices that the activations of a token meet.
    pub(super) fn n_matrices(&self) -> usize {
        self.experts.map_or(1, |experts| experts.routing.n_used)
    }

    /// Weight rows that the activations of a token meet.
    pub(super) fn n_outputs(&self) -> usize {
        self.matrix.n_out * self.n_matrices()
    }
}

/// The address of the planes of a matrix that may be missing.
pub(super) fn planes_or_null(matrix: Option<Matrix<'_>>) -> Address {
    matrix.map_or(Address::NULL, |matrix| planes(&matrix))
}

/// The address of an operand that may be missing.
pub(super) fn address<T>(operand: Option<Slice<'_, T>>) -> Address {
    operand.map_or(Address::NULL, |operand| operand.address())
}

/// What the products of a launch differ in: `Product` in jobs.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawProduct {
    w: Weights,
    bias: Address,
    out: Address,
    first_block: u32,
    mode: u32,
    pub(super) split_log: u32,
    pub(super) turns_log: u32,
}

layout!(RawProduct {
    w,
    bias,
    out,
    first_block,
    mode,
    split_log,
    turns_log
});

impl RawProduct {
    /// A product whose blocks begin at `first_block`.
    pub(super) fn new(work: &Work<'_>, first_block: u32) -> RawProduct {
        RawProduct {
            w: (&work.matrix).into(),
            bias: address(work.bias),
            out: work.out.address(),
            first_block,
            mode: work.mode as u32,
            split_log: 0,
            turns_log: 0,
        }
    }
}

/// The parameters of GEMV kernels: `Few` in jobs.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Few {
    x: Address,
    scales: Address,
    sums: Address,
    n_rows: u32,
    gated: u32,
    products: [RawProduct; FEW],
    tiles: Table<ExpertTile>,
    expert_bytes: Count,
    expert_scales: Address,
    up_scales: Address,
    out_skip: Count,
    out_stride: u32,
    n_stacked: u32,
    shared: Address,
    up_shared: Address,
}

layout!(Few {
    x,
    scales,
    sums,
    n_rows,
    gated,
    products,
    tiles,
    expert_bytes,
    expert_scales,
    up_scales,
    out_skip,
    out_stride,
    n_stacked,
    shared,
    up_shared
});

impl Few {
    /// Up to [`FEW`] products of the activations of the first work; `tiles` are those of its experts.
    pub(super) fn new(
        works: &[Work<'_>],
        products: &[RawProduct],
        tiles: Option<Slice<'_, ExpertTile>>,
    ) -> Few {
        let first = &works[0];
        // Unused products begin after the last block.
        let after = RawProduct {
            first_block: u32::MAX,
            ..products[0]
        };
        let mut all = [after; FEW];
        all[..products.len()].copy_from_slice(products);
        let (mut up_scales, mut up_shared) = (None, None);
        if let Some(up) = first.of_up() {
            all[1] = RawProduct::new(&up, 0);
            (up_scales, up_shared) = (up.scales, up.shared);
        }
        let one = One::new(first, products[0], tiles);
        Few {
            x: one.x,
            scales: one.scales,
            sums: one.sums,
            n_rows: one.n_rows,
            gated: u32::from(first.up.is_some()),
            products: all,
            tiles: one.tiles,
            expert_bytes: one.expert_bytes,
            expert_scales: one.expert_scales,
            up_scales: address(up_scales),
            out_skip: one.out_skip,
            out_stride: one.out_stride,
            n_stacked: one.n_stacked,
            shared: one.shared,
            up_shared: planes_or_null(up_shared),
        }
    }
}

/// The parameters of GEMM kernels, and an entry of a table: `One` in jobs.h.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(super) struct One {
    w: Weights,
    x: Address,
    scales: Address,
    sums: Address,
    bias: Address,
    out: Address,
    n_rows: u32,
    mode: u32,
    split_log: u32,
    turns_log: u32,
    first_block: u32,
    pub(super) timed: u32,
    tiles: Table<ExpertTile>,
    expert_bytes: Count,
    expert_scales: Address,
    out_skip: Count,
    out_stride: u32,
    n_stacked: u32,
    shared: Address,
}

layout!(One {
    w,
    x,
    scales,
    sums,
    bias,
    out,
    n_rows,
    mode,
    split_log,
    turns_log,
    first_block,
    timed,
    tiles,
    expert_bytes,
    expert_scales,
    out_skip,
    out_stride,
    n_stacked,
    shared
});

impl One {
    /// `tiles` are those of the work's experts.
    pub(super) fn new(
        work: &Work<'_>,
        product: RawProduct,
        tiles: Option<Slice<'_, ExpertTile>>,
    ) -> One {
        let x = match work.x.form {
            ActFormat::F32 => work.x.values.address(),
            ActFormat::Q8x32 | ActFormat::Q8x256 => work.x.codes.address(),
        };
        let [expert_bytes, n_stacked] = work
            .experts
            .map_or([0; 2], |experts| [experts.n_bytes, experts.n_stacked]);
        One {
            w: product.w,
            x,
            scales: work.x.scales.address(),
            sums: work.x.sums.address(),
            bias: product.bias,
            out: product.out,
            n_rows: u32::try_from(work.x.n_rows).expect("the number of rows fits 32 bits"),
            mode: product.mode,
            split_log: product.split_log,
            turns_log: product.turns_log,
            first_block: product.first_block,
            timed: 0,
            tiles: tiles.map_or(Table::NULL, |tiles| tiles.table()),
            expert_bytes: Count(expert_bytes as u64),
            expert_scales: address(work.scales),
            out_skip: Count(work.places.skip as u64),
            out_stride: work.places.stride as u32,
            n_stacked: n_stacked as u32,
            shared: planes_or_null(work.shared),
        }
    }

    /// For GEMM: the same, with blocks of all rows of some outputs before those of the next outputs.
    pub(super) fn rows_first(self) -> One {
        One {
            mode: self.mode | ROWS_FIRST,
            ..self
        }
    }
}

/// `ROWS_FIRST` in jobs.h.
const ROWS_FIRST: u32 = 4;

/// The parameters of kernels that take a table of products: `Listed` in jobs.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Listed {
    first_blocks: Address,
    jobs: Table<One>,
    times: Address,
    n_jobs: u32,
    n_timed: u32,
}

layout!(Listed {
    first_blocks,
    jobs,
    times,
    n_jobs,
    n_timed
});

impl Listed {
    /// `times` as in [`super::Group::launch`].
    pub(super) fn new(
        first_blocks: Slice<'_, u32>,
        jobs: Slice<'_, One>,
        times: Slice<'_, u64>,
    ) -> Listed {
        assert_eq!(first_blocks.len(), jobs.len(), "one first block per job");
        Listed {
            first_blocks: first_blocks.address(),
            jobs: jobs.table(),
            times: times.address(),
            n_jobs: jobs.len() as u32,
            n_timed: (times.len() / 2) as u32,
        }
    }
}

// Launches cost more with more parameters: each line of 64 bytes that a kernel reads counts.
const _: () = assert!(size_of::<Few>() == 240 && size_of::<One>() == 128);
