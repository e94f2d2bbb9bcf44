//! The parts that families are made of.

mod attention;
mod channel_delta;
mod drafter_ends;
mod feed_forward;
mod latent;
mod mixture;
mod recurrent;
mod selective;
mod stream;

pub(crate) use attention::{attention, attention_heads, normed};
pub(crate) use drafter_ends::{drafter_embeddings, drafter_logits};
pub(crate) use feed_forward::{
    feed_forward, fused_feed_forward, gated_feed_forward, plain_feed_forward,
};
pub(crate) use mixture::{chosen_experts, plain_experts, plain_shared, routed_experts, routing};
pub(crate) use stream::{
    add_positions, add_token_type, embedding, embeddings, embeddings_by, last_norm, logits,
    logits_by,
};
