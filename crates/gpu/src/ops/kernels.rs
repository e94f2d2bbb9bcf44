//! Every kernel of a device, by the module that it is in.

use super::argmax::ArgmaxKernels;
use super::attend::AttendKernels;
use super::attention::{DecodeKernels, PrefillKernels};
use super::channel_layer::ChannelLayerKernels;
use super::chunks::{ChannelChunks, DeltaChunks, SsdChunks};
use super::elementwise::ElementwiseKernels;
use super::expand::ExpandKernels;
use super::formats::{PerFormat, format_modules};
use super::group::BatchKernels;
use super::half::{GemmHalves, HalfActsKernels, HalfRowsKernels, OctetKernels};
use super::half_cache::KvHalvesKernels;
use super::heads::HeadsKernels;
use super::kv_move::KvMoveKernels;
use super::linear_layer::LinearLayerKernels;
use super::mask::MaskKernels;
use super::mxfp6::Mxfp6Kernels;
use super::norm::NormKernels;
use super::recurrent::RecurrentKernels;
use super::rope_kv::RopeKvKernels;
use super::router::RouterKernels;
use super::routing::ExpertsKernels;
use super::rows::RowsKernels;
use super::sample::{SampleAllKernels, SampleKernels};
use super::select::{FewFloatsKernels, Gemms, GemvKernels, GemvWideKernels, ManyFloatsKernels};
use super::step_io::StepIoKernels;
use super::streams::StreamsKernels;
use super::tile::TileKernels;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{AnyKernel, KernelLayout, KernelTable};
use crate::kv::{PerKvTypes, kv_modules, kv_types};
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
            $(pub(super) $of_kv: PerKvTypes<$kv_table>,)*
        }

        impl Kernels {
            fn new() -> Kernels {
                Kernels {
                    $($plain: $table::of_module(stringify!($plain)),)*
                    $($of_format: PerFormat::of_modules(format_modules!($of_format)),)*
                    $($of_kv: PerKvTypes::of_modules(kv_modules!($of_kv)),)*
                }
            }

            fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
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
        attend: AttendKernels,
        bandwidth: BandwidthKernels,
        batch: BatchKernels,
        channel_chunks: ChannelChunks,
        channel_layer: ChannelLayerKernels,
        delta_chunks: DeltaChunks,
        elementwise: ElementwiseKernels,
        expand: ExpandKernels,
        experts: ExpertsKernels,
        few_floats: FewFloatsKernels,
        gemm_octet: OctetKernels,
        half_acts: HalfActsKernels,
        half_rows: HalfRowsKernels,
        heads: HeadsKernels,
        linear_layer: LinearLayerKernels,
        many_floats: ManyFloatsKernels,
        mask: MaskKernels,
        mma: TileKernels,
        mxfp6: Mxfp6Kernels,
        norm: NormKernels,
        recurrent: RecurrentKernels,
        router: RouterKernels,
        sample: SampleKernels,
        sample_all: SampleAllKernels,
        selftest: SelfTestKernels,
        ssd_chunks: SsdChunks,
        step_io: StepIoKernels,
        streams: StreamsKernels,
    }
    formats {
        gemm: Gemms,
        gemm_half: GemmHalves,
        gemv: GemvKernels,
        gemv_of_tiles: GemvKernels,
        gemv_wide: GemvWideKernels,
        gemv_wide_of_tiles: GemvWideKernels,
        rows: RowsKernels,
    }
    kv {
        attention_decode: DecodeKernels,
        attention_prefill: PrefillKernels,
        kv_halves: KvHalvesKernels,
        kv_move: KvMoveKernels,
        rope_kv: RopeKvKernels,
    }
}

impl Gpu {
    /// The kernels of this device.
    pub(crate) fn kernels(&self) -> &Kernels {
        let kernels = &self.inner.kernels;
        let kernels = kernels.get_or_init(|| Box::new(Kernels::new()));
        kernels.downcast_ref().expect("nothing else sets it")
    }

    /// Returns the names of all kernels in the device's images, and the parameters of each, after loading all modules. A
    /// kernel that its image lacks has an error instead.
    pub fn kernel_layouts(&self) -> Vec<(&'static str, Result<KernelLayout, GpuError>)> {
        let mut layouts = Vec::new();
        self.kernels().each(&mut |kernel| {
            if Image::find(self.target(), kernel.module()).is_some() {
                layouts.push((kernel.name(), kernel.layout(self)));
            }
        });
        layouts
    }
}
