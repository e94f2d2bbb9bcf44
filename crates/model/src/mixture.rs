//! The second half of a layer whose feed-forward network is a mixture of experts (Mixtral, Qwen).

use rocmforge_plan::Activation;

use super::config::{Experts, ModelConfig};
use super::decoder::{Buffers, Wiring};
use crate::error::LoadError;
use rocmforge_plan::{BufferId, Recorder, RoutingId, RowCount};

/// The buffers that the mixtures of all layers share.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertBuffers {
    facts: Experts,
    /// One logit for each expert.
    logits: BufferId,
    routing: RoutingId,
    gate: BufferId,
    up: BufferId,
    activated: BufferId,
    /// What each expert of each token adds.
    product: BufferId,
    /// The gate of the shared expert and what it adds.
    shared: Option<(BufferId, BufferId)>,
}

impl ExpertBuffers {
    pub(super) fn new(plan: &mut Recorder, config: &ModelConfig, facts: Experts) -> ExpertBuffers {
        let rows = RowCount::Choices {
            n_used: facts.router.n_used,
        };
        ExpertBuffers {
            facts,
            logits: plan.buffer(RowCount::Tokens, facts.n_experts),
            routing: plan.routing(),
            gate: plan.buffer(rows, facts.n_ff),
            up: plan.buffer(rows, facts.n_ff),
            activated: plan.buffer(rows, facts.n_ff),
            product: plan.buffer(rows, config.n_embd),
            shared: facts.n_ff_shared.map(|_| {
                let gate = plan.buffer(RowCount::Tokens, 1);
                (gate, plan.buffer(RowCount::Tokens, config.n_embd))
            }),
        }
    }
}

impl Wiring<'_> {
    /// `x += sum(weight * expert(norm(x)))` over the experts of each token, and the shared expert if there
    /// is one.
    pub(super) fn mixture(
        &mut self,
        layer: usize,
        experts: ExpertBuffers,
    ) -> Result<(), LoadError> {
        let ExpertBuffers {
            facts,
            logits,
            routing,
            gate,
            up,
            activated,
            product,
            shared,
        } = experts;
        let n_embd = self.config.n_embd;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");

        let input = self.block_input(&name("ffn_norm"))?;
        self.linear(
            input,
            &name("ffn_gate_inp"),
            facts.n_experts,
            n_embd,
            logits,
        )?;
        self.plan.route(logits, facts.router, routing);
        for (tensor, out) in [("ffn_gate_exps", gate), ("ffn_up_exps", up)] {
            self.expert_linear(input, &name(tensor), [facts.n_ff, n_embd], experts, out)?;
        }
        self.plan
            .gated_activation(Activation::Silu, gate, up, activated);
        let down = name("ffn_down_exps");
        self.expert_linear(activated, &down, [n_embd, facts.n_ff], experts, product)?;
        let sum = self.buffers.product;
        self.plan.combine_experts(product, routing, sum);
        if let (Some((shared_gate, shared_product)), Some(n_ff)) = (shared, facts.n_ff_shared) {
            let Buffers {
                gate,
                up,
                activated,
                ..
            } = self.buffers;
            self.linear(input, &name("ffn_gate_inp_shexp"), 1, n_embd, shared_gate)?;
            self.linear(input, &name("ffn_gate_shexp"), n_ff, n_embd, gate)?;
            self.linear(input, &name("ffn_up_shexp"), n_ff, n_embd, up)?;
            self.plan
                .gated_activation(Activation::Silu, gate, up, activated);
            let down = name("ffn_down_shexp");
            self.linear(activated, &down, n_embd, n_ff, shared_product)?;
            self.plan.add_gated(shared_gate, shared_product, sum);
        }
        self.block_output(&name("post_ffw_norm"))
    }

    /// `out = from * w^T` with the matrix of each row's expert, `[n_out, n_in]`.
    fn expert_linear(
        &mut self,
        from: BufferId,
        tensor: &str,
        [n_out, n_in]: [usize; 2],
        experts: ExpertBuffers,
        out: BufferId,
    ) -> Result<(), LoadError> {
        let n_experts = experts.facts.n_experts;
        let name = format!("{tensor}.weight");
        let weight = self.loader.experts(&name, n_experts, n_out, n_in)?;
        let format = self.act_format(&name);
        self.plan
            .expert_matmul(from, experts.routing, (weight, n_experts), format, out);
        Ok(())
    }
}
