//! Resolves command-line arguments to the engine's settings, for all commands.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use rocmforge::Device;
use rocmforge::parts::{first_use_check, random_seed, tuning_files};
use rocmforge_cpu::Isa;
use rocmforge_engine::{ContextPolicy, Device as EngineDevice, EngineConfig, Request};
use rocmforge_gguf::TokenId;
use rocmforge_gpu::RangeTool;
use rocmforge_hub::dirs;
use rocmforge_plan::{Dry, DynamicTemperature, KvTypes, Mirostat, SamplingParams, Xtc};
use rocmforge_runtime::check::SelfCheck;
use rocmforge_runtime::gpu::{
    DeviceId, Experts, GpuConfig, GpuLayers, Graphs, Offload, OpenOptions, TuningUse, WhenIdle,
};
use rocmforge_runtime::tuning::{TuningFiles, TuningStore};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};

use crate::args::{
    AnswerArgs, AnswerContextArgs, CacheArgs, ContextArgs, ContextPolicyArg, DeviceArgs, GpuArgs,
    GpuCheckArg, IsaArg, OffloadArgs, OnArgs, SamplingArgs,
};
use crate::exit::usage;
use crate::output;
use crate::serve::log;

/// Like [`engine_config`], for answers that may continue past the context.
pub fn answer_config(
    device: &DeviceArgs,
    context: &AnswerContextArgs,
    when_idle: WhenIdle,
) -> Result<EngineConfig> {
    let n_sinks = context.context_sinks;
    if let (ContextPolicyArg::Stop, Some(n)) = (context.context_policy, n_sinks) {
        return Err(usage(format!(
            "--context-sinks {n} has no effect; add --context-policy shift, or omit it"
        )));
    }
    let mut config = EngineConfig {
        context_policy: match context.context_policy {
            ContextPolicyArg::Stop => ContextPolicy::Stop,
            ContextPolicyArg::Shift => ContextPolicy::Shift {
                n_sinks: n_sinks.unwrap_or(ContextPolicy::DEFAULT_SINKS),
            },
        },
        ..engine_config(device, context.context.n_ctx())?
    };
    if let EngineDevice::Gpu(gpu) = &mut config.device {
        gpu.tuning.when_idle = when_idle;
    }
    Ok(config)
}

/// Returns the engine's configuration.
pub fn engine_config(device: &DeviceArgs, n_ctx: Option<usize>) -> Result<EngineConfig> {
    let config = EngineConfig {
        isa: isa(device.isa)?,
        n_threads: device.threads,
        notice: log::notice,
        ..cache_config(&device.cache, n_ctx)
    };
    Ok(config.on(offloaded(device)?))
}

/// Returns the device and the part of the model that it runs.
fn offloaded(device: &DeviceArgs) -> Result<EngineDevice> {
    let offload = offload(&device.offload);
    if offload.layers == GpuLayers::Count(0) {
        refuse_without_layers(&device.on.gpu, offload.experts)?;
        return Ok(EngineDevice::Cpu);
    }
    refuse_without_gpu(&device.on, offload)?;
    let found = engine_device(&device.on)?;
    if let (EngineDevice::Cpu, Some(flag)) = (&found, flag_of_gpu(&device.on.gpu, offload)) {
        output::note(&format!(
            "notice: no GPU for {flag}; the model runs on the CPU"
        ));
    }
    Ok(with_offload(found, offload))
}

/// Rejects GPU flags with `--device cpu`.
pub fn refuse_without_gpu(on: &OnArgs, offload: Offload) -> Result<()> {
    match flag_of_gpu(&on.gpu, offload) {
        Some(flag) if on.device == Device::Cpu => Err(usage(format!(
            "{flag} needs a GPU, but --device cpu uses none; omit one of them"
        ))),
        _ => Ok(()),
    }
}

/// Rejects GPU flags with `--gpu-layers 0`.
pub fn refuse_without_layers(gpu: &GpuArgs, experts: Experts) -> Result<()> {
    let flag = match (experts, gpu.gpu_memory, gpu.kernel_variant) {
        (Experts::OnCpu, ..) => "--cpu-moe".to_string(),
        (_, Some(mib), _) => format!("--gpu-memory {mib}"),
        (.., Some(_)) => "--kernel-variant".to_string(),
        (_, None, None) => return Ok(()),
    };
    Err(usage(format!(
        "{flag} needs a GPU, but --gpu-layers 0 uses none; omit one of them"
    )))
}

/// Returns the first flag given that only applies to GPUs.
fn flag_of_gpu(gpu: &GpuArgs, offload: Offload) -> Option<String> {
    match (offload.layers, offload.experts, gpu.gpu_memory) {
        (GpuLayers::Count(n), ..) => Some(format!("--gpu-layers {n}")),
        (_, Experts::OnCpu, _) => Some("--cpu-moe".to_string()),
        (.., Some(mib)) => Some(format!("--gpu-memory {mib}")),
        (.., None) => None,
    }
}

/// Returns the part of a model that runs on the GPU.
pub fn offload(args: &OffloadArgs) -> Offload {
    Offload {
        layers: args.gpu_layers,
        experts: match args.cpu_moe {
            true => Experts::OnCpu,
            false => Experts::WithTheirLayer,
        },
    }
}

/// Returns `device` with this part of the model; the CPU if the part is empty.
pub fn with_offload(device: EngineDevice, offload: Offload) -> EngineDevice {
    match device {
        EngineDevice::Gpu(_) if offload.layers == GpuLayers::Count(0) => EngineDevice::Cpu,
        EngineDevice::Gpu(gpu) => EngineDevice::Gpu(GpuConfig { offload, ..gpu }),
        EngineDevice::Cpu => EngineDevice::Cpu,
    }
}

/// Returns the requested device. Without a usable GPU, `auto` falls back to the CPU with a notice.
pub fn engine_device(args: &OnArgs) -> Result<EngineDevice> {
    let id = match args.device {
        Device::Id(id) => Some(id),
        Device::Auto | Device::Cpu | Device::Gpu => None,
    };
    let gpu = GpuConfig {
        id,
        open: open_options(&args.gpu),
        graphs: match args.gpu.no_graphs || args.gpu.ranges {
            true => Graphs::Off,
            false => Graphs::On,
        },
        batch_invariant: args.gpu.batch_invariant,
        self_check: self_check(&args.gpu, id),
        offload: Offload::default(),
        tuning: tuning(&args.gpu, id, WhenIdle::Wait),
    };
    let found = args.device.find(gpu);
    for notice in &found.notices {
        output::note(&format!("notice: {notice}"));
    }
    Ok(found.device)
}

/// Returns when to check the GPU `id`. Emulated GPUs are slow and are checked only on request.
fn self_check(args: &GpuArgs, id: Option<DeviceId>) -> SelfCheck {
    match args.gpu_check {
        GpuCheckArg::Never => SelfCheck::Never,
        GpuCheckArg::Always => SelfCheck::Always,
        GpuCheckArg::Auto => {
            let dir = args.cache_dir.clone().or_else(dirs::cache);
            first_use_check(dir.as_deref(), id)
        }
    }
}

/// Returns how autotuning results are used on the GPU `id`.
pub fn tuning(args: &GpuArgs, id: Option<DeviceId>, when_idle: WhenIdle) -> TuningUse {
    let store = tuning_store(args, id).map(|files| Arc::new(files) as Arc<dyn TuningStore>);
    TuningUse { store, when_idle }
}

/// Returns the folder of autotuning results; for an emulated GPU, only an explicitly given one.
pub fn tuning_store(args: &GpuArgs, id: Option<DeviceId>) -> Option<TuningFiles> {
    match &args.cache_dir {
        Some(dir) => Some(TuningFiles::below(dir)),
        None => tuning_files(dirs::cache().as_deref(), id),
    }
}

/// Returns how to open GPUs.
pub fn open_options(args: &GpuArgs) -> OpenOptions {
    OpenOptions {
        image: args.gpu_image.clone(),
        variants: args.kernel_variant.unwrap_or_default(),
        memory_bytes: args.gpu_memory.map(|mib| u64::from(mib) << 20),
        ranges: args.ranges.then(|| Arc::new(RangeTool::from_env())),
        ..OpenOptions::from_env()
    }
}

/// Returns a configuration with only the cache-related settings.
pub fn cache_config(cache: &CacheArgs, n_ctx: Option<usize>) -> EngineConfig {
    EngineConfig {
        n_ctx,
        max_seqs: 1,
        page: cache.page.unwrap_or_else(|| page_for(n_ctx)),
        kv_types: KvTypes {
            keys: cache.kv_type_k.unwrap_or(cache.kv_type).into(),
            values: cache.kv_type_v.unwrap_or(cache.kv_type).into(),
        },
        ..EngineConfig::default()
    }
}

/// Returns the tokens of a page for sequences of up to `n_ctx` tokens. Half of a sequence's last page is unused on average,
/// which weighs in short ones. Long ones have shorter tables with larger pages.
fn page_for(n_ctx: Option<usize>) -> usize {
    match n_ctx {
        Some(..=2048) => 16,
        Some(16385..) => 64,
        _ => 32,
    }
}

/// Returns the requested instruction set.
pub fn isa(wanted: IsaArg) -> Result<Isa> {
    let name = match wanted {
        IsaArg::Auto => return Ok(Isa::detect()),
        IsaArg::Scalar => "scalar",
        IsaArg::Avx2 => "avx2",
        IsaArg::Avx512 => "avx512",
    };
    let available = Isa::available();
    let found = available.iter().find(|isa| isa.name() == name).copied();
    found.ok_or_else(|| {
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        anyhow!(
            "this CPU does not have {name}; it has: {}",
            names.join(", ")
        )
    })
}

/// Returns the sampling parameters, with a random seed if none is given.
pub fn sampling(args: &SamplingArgs) -> Result<Arc<SamplingParams>> {
    let mirostat = match args.mirostat {
        0 => None,
        2 => Some(Mirostat {
            tau: args.mirostat_ent,
            eta: args.mirostat_lr,
        }),
        n => return Err(usage(format!("mirostat is {n}, expected 0 or 2"))),
    };
    let defaults = SamplingParams::default();
    let params = SamplingParams {
        samplers: args.samplers.0.clone(),
        logit_bias: args.logit_bias.clone(),
        temperature: args.temp,
        dynamic_temperature: DynamicTemperature {
            range: args.dynatemp_range,
            exponent: args.dynatemp_exp,
        },
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        typical_p: args.typical_p,
        top_n_sigma: args.top_n_sigma,
        xtc: Xtc {
            probability: args.xtc_probability,
            threshold: args.xtc_threshold,
        },
        repeat_penalty: args.repeat_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        penalty_last_n: look_back(args.repeat_last_n),
        dry: Dry {
            multiplier: args.dry_multiplier,
            base: args.dry_base,
            allowed_length: args.dry_allowed_length,
            last_n: look_back(args.dry_penalty_last_n),
            sequence_breakers: args
                .sequence_breakers()
                .unwrap_or(defaults.dry.sequence_breakers),
        },
        mirostat,
        seed: args.seed.unwrap_or_else(random_seed),
    };
    params
        .validate()
        .map_err(|error| usage(error.to_string()))?;
    Ok(Arc::new(params))
}

/// Converts a number of tokens; negative numbers mean all.
fn look_back(n_tokens: i64) -> usize {
    usize::try_from(n_tokens).unwrap_or(usize::MAX)
}

impl AnswerArgs {
    /// Returns a request for the answer to `prompt`.
    pub fn request(
        &self,
        prompt: Vec<TokenId>,
        sampling: &Arc<SamplingParams>,
        leading_space: LeadingSpace,
    ) -> Request {
        // Negative numbers mean no limit.
        let max_tokens = usize::try_from(self.max_tokens).unwrap_or(usize::MAX);
        Request {
            sampling: Arc::clone(sampling),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            special_text: if self.special {
                SpecialText::Show
            } else {
                SpecialText::Hide
            },
            leading_space,
            ..Request::greedy(prompt, max_tokens)
        }
    }
}

impl ContextArgs {
    /// Returns the requested context; 0 means the default, as in llama.cpp.
    pub fn n_ctx(&self) -> Option<usize> {
        self.ctx.filter(|&n| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::KvTypeArg;

    #[test]
    fn pages_grow_with_the_context_unless_they_are_named() {
        let cache = |page| CacheArgs {
            kv_type: KvTypeArg::F16,
            kv_type_k: None,
            kv_type_v: None,
            page,
        };
        for (n_ctx, page) in [
            (None, 32),
            (Some(1), 16),
            (Some(2048), 16),
            (Some(2049), 32),
            (Some(16384), 32),
            (Some(16385), 64),
        ] {
            assert_eq!(cache_config(&cache(None), n_ctx).page, page, "{n_ctx:?}");
            assert_eq!(cache_config(&cache(Some(64)), n_ctx).page, 64, "{n_ctx:?}");
        }
    }
}
