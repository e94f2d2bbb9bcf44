//! Every kernel of a device, by the module that it is in.

use super::argmax::ArgmaxKernels;
use super::attention::{DecodeKernels, PrefillKernels};
use super::elementwise::ElementwiseKernels;
use super::experts::{ExpertMatmulKernels, ExpertMatvecKernels};
use super::formats::{PerFormat, format_modules};
use super::group::{BatchKernels, MatvecGroupKernels};
use super::kv_move::KvMoveKernels;
use super::matmul::MatmulKernels;
use super::matvec::MatvecKernels;
use super::mxfp6::Mxfp6Kernels;
use super::norm::NormKernels;
use super::rope_kv::RopeKvKernels;
use super::routing::ExpertsKernels;
use super::rows::RowsKernels;
use super::sample::SampleKernels;
use super::step_io::StepIoKernels;
use super::tile::TileKernels;
use crate::kernel::{AnyKernel, KernelTable};
use crate::kv::{PerKvType, kv_modules};
use crate::roofline::{ArithmeticKernels, BandwidthKernels};
use crate::self_test::SelfTestKernels;

macro_rules! modules {
    (
        files { $($plain:ident: $table:ident,)* }
        formats { $($of_format:ident: $format_table:ident,)* }
        kv { $($of_kv:ident: $kv_table:ident,)* }
    ) => {
        pub(crate) struct Kernels {
            $(pub(crate) $plain: $table,)*
            $(pub(super) $of_format: PerFormat<$format_table>,)*
            $(pub(super) $of_kv: PerKvType<$kv_table>,)*
        }

        impl Kernels {
            pub(crate) fn new() -> Kernels {
                Kernels {
                    $($plain: $table::of_module(stringify!($plain)),)*
                    $($of_format: PerFormat::of_modules(format_modules!($of_format)),)*
                    $($of_kv: PerKvType::of_modules(kv_modules!($of_kv)),)*
                }
            }

            pub(crate) fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
                $(self.$plain.each(visit);)*
                $(self.$of_format.each(visit);)*
                $(self.$of_kv.each(visit);)*
            }
        }
    };
}

modules! {
    files {
        argmax: ArgmaxKernels,
        arithmetic: ArithmeticKernels,
        bandwidth: BandwidthKernels,
        batch: BatchKernels,
        elementwise: ElementwiseKernels,
        experts: ExpertsKernels,
        mma: TileKernels,
        mxfp6: Mxfp6Kernels,
        norm: NormKernels,
        sample: SampleKernels,
        selftest: SelfTestKernels,
        step_io: StepIoKernels,
    }
    formats {
        expert_matmul: ExpertMatmulKernels,
        expert_matvec: ExpertMatvecKernels,
        matmul: MatmulKernels,
        matvec: MatvecKernels,
        matvec_group: MatvecGroupKernels,
        rows: RowsKernels,
    }
    kv {
        attention_decode: DecodeKernels,
        attention_prefill: PrefillKernels,
        kv_move: KvMoveKernels,
        rope_kv: RopeKvKernels,
    }
}
