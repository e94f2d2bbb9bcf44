//! How an answer is generated: the fields that chat and completions share.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocmforge::parts::random_seed;
use rocmforge_engine::Request;
use rocmforge_gguf::TokenId;
use rocmforge_plan::{Dry, DynamicTemperature, Mirostat, SamplerKind, SamplingParams, Xtc};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};
use serde_json::{Map, Value, json};

use crate::config::Limits;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::serving::structured::Structure;

/// One text or several.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// How an answer is generated.
pub(crate) struct Generation {
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) stream: bool,
    /// Whether a stream ends with the sums of tokens.
    pub(crate) include_usage: bool,
    pub(crate) max_tokens: Option<usize>,
    stop: Vec<String>,
    stop_ids: Vec<TokenId>,
    ignore_eos: bool,
    min_tokens: usize,
    sampling: SamplingParams,
    priority: i32,
    cache_salt: Option<String>,
    start_by: Instant,
    first_token_within: Option<Duration>,
    deadline: Instant,
}

impl Generation {
    /// Reads the fields.
    ///
    /// # Errors
    /// One of them has a wrong type, is out of range, or is not supported.
    pub(crate) fn read(
        fields: &mut Fields,
        caller: &Caller,
        limits: &Limits,
    ) -> Result<Generation, ApiError> {
        let n = fields.take("n")?.unwrap_or(1);
        if n == 0 || n > limits.max_choices {
            return Err(ApiError::field(
                "n",
                format!("use 1 to {}", limits.max_choices),
            ));
        }
        let stream = fields.take("stream")?.unwrap_or(false);
        let mut options = fields.take_fields("stream_options")?;
        let include_usage = options.take("include_usage")?.unwrap_or(false);
        let max_tokens: Option<usize> =
            fields.take_any(&["max_completion_tokens", "max_tokens"])?;
        if max_tokens == Some(0) {
            return Err(ApiError::field("max_tokens", "use 1 or more"));
        }
        // llama-server's name, in which a negative number is no limit.
        let n_predict: Option<i64> = fields.take("n_predict")?;
        if n_predict == Some(0) {
            return Err(ApiError::field("n_predict", "use 1 or more, or -1"));
        }
        let n_predict = n_predict.and_then(|n| usize::try_from(n).ok());
        let asked: i32 = fields.take("priority")?.unwrap_or(0);
        let most = caller.key.as_ref().and_then(|key| key.max_priority);
        Ok(Generation {
            n,
            stream,
            include_usage,
            max_tokens: n_predict.or(max_tokens),
            stop: stops(fields, limits)?,
            stop_ids: stop_ids(fields, limits)?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.take("min_tokens")?.unwrap_or(0),
            sampling: sampling(fields, limits)?,
            // Without keys, nobody may put others behind.
            priority: asked.min(most.unwrap_or(0)),
            cache_salt: caller.cache_salt(fields.take("cache_salt")?),
            start_by: Instant::now() + limits.max_queue_time,
            first_token_within: limits.max_first_token_time,
            deadline: Instant::now() + limits.max_answer_time,
        })
    }

    /// Checks the fields that a model has for requests that leave them out.
    ///
    /// # Errors
    /// One of them is unknown, or has a wrong value.
    pub(crate) fn check_defaults(
        defaults: &Map<String, Value>,
        limits: &Limits,
    ) -> Result<(), ApiError> {
        let mut fields = Fields::new(defaults.clone());
        fields.take::<Map<String, Value>>("chat_template_kwargs")?;
        Generation::read(&mut fields, &Caller::default(), limits)?;
        match fields.unread() {
            None => Ok(()),
            Some(names) => Err(ApiError::bad(format!("no settings of answers: {names}"))),
        }
    }

    /// Whether answers go on after tokens of end-of-generation.
    pub(crate) fn ignores_eos(&self) -> bool {
        self.ignore_eos
    }

    /// Returns the stop strings, in the order in which [`StopCause`](rocmforge_engine::StopCause) counts them.
    pub(crate) fn stops(&self) -> &[String] {
        &self.stop
    }

    /// Returns llama-server's description of the settings.
    pub(crate) fn settings(&self) -> Value {
        let s = &self.sampling;
        let mirostat = s.mirostat.unwrap_or_default();
        let biases = s.logit_bias.iter();
        // JSON has no infinity: null forbids a token.
        let biases = biases.map(|&(token, bias)| json!({ "token": token, "bias": bias }));
        let samplers = s.samplers.iter().map(|kind| kind.name());
        // All is -1.
        let count = |n: usize| i64::try_from(n).unwrap_or(-1);
        let n_predict = self.max_tokens.map_or(-1, count);
        json!({
            "n_predict": n_predict,
            "max_tokens": n_predict,
            "stream": self.stream,
            "stop": self.stop,
            "ignore_eos": self.ignore_eos,
            "seed": s.seed,
            "temperature": s.temperature,
            "dynatemp_range": s.dynamic_temperature.range,
            "dynatemp_exponent": s.dynamic_temperature.exponent,
            "top_k": s.top_k,
            "top_p": s.top_p,
            "min_p": s.min_p,
            "typical_p": s.typical_p,
            "top_n_sigma": s.top_n_sigma,
            "xtc_probability": s.xtc.probability,
            "xtc_threshold": s.xtc.threshold,
            "repeat_last_n": count(s.penalty_last_n),
            "repeat_penalty": s.repeat_penalty,
            "presence_penalty": s.presence_penalty,
            "frequency_penalty": s.frequency_penalty,
            "dry_multiplier": s.dry.multiplier,
            "dry_base": s.dry.base,
            "dry_allowed_length": s.dry.allowed_length,
            "dry_penalty_last_n": count(s.dry.last_n),
            "dry_sequence_breakers": s.dry.sequence_breakers,
            "mirostat": if s.mirostat.is_some() { 2 } else { 0 },
            "mirostat_tau": mirostat.tau,
            "mirostat_eta": mirostat.eta,
            "samplers": samplers.collect::<Vec<_>>(),
            "logit_bias": biases.collect::<Vec<_>>(),
        })
    }

    /// Returns the requests for the answers to a prompt, which they share. Their seeds differ.
    pub(crate) fn requests(&self, prompt: &Arc<[TokenId]>, form: &Form) -> Vec<Request> {
        let request = |i: usize| Request {
            sampling: Arc::new(SamplingParams {
                seed: self.sampling.seed.wrapping_add(i as u64),
                ..self.sampling.clone()
            }),
            stop: self.stop.clone(),
            stop_ids: self.stop_ids.clone(),
            ignore_eos: self.ignore_eos,
            min_tokens: self.min_tokens,
            start_by: Some(self.start_by),
            first_token_within: self.first_token_within,
            deadline: Some(self.deadline),
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
            special_text: form.special_text,
            leading_space: form.leading_space,
            logprobs: form.logprobs,
            constraint: form.structure.as_ref().map(Structure::constraint),
            prompt: Arc::clone(prompt),
            ..Request::greedy(Vec::new(), self.max_tokens.unwrap_or(usize::MAX))
        };
        (0..self.n).map(request).collect()
    }
}

/// The form of an answer's text.
#[derive(Clone)]
pub(crate) struct Form {
    pub(crate) special_text: SpecialText,
    pub(crate) leading_space: LeadingSpace,
    /// Whether log-probabilities are returned, and of how many of the best tokens.
    pub(crate) logprobs: Option<usize>,
    /// What the text must be.
    pub(crate) structure: Option<Structure>,
}

fn stops(fields: &mut Fields, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text],
        Some(OneOrMany::Many(texts)) => texts,
    };
    if stops.len() > limits.max_stops {
        return Err(ApiError::field(
            "stop",
            format!("use at most {} texts", limits.max_stops),
        ));
    }
    if stops.iter().map(String::len).sum::<usize>() > limits.max_stop_bytes {
        let message = format!("use at most {} bytes", limits.max_stop_bytes);
        return Err(ApiError::field("stop", message));
    }
    Ok(stops.into_iter().filter(|text| !text.is_empty()).collect())
}

fn stop_ids(fields: &mut Fields, limits: &Limits) -> Result<Vec<TokenId>, ApiError> {
    let ids: Vec<TokenId> = fields.take("stop_token_ids")?.unwrap_or_default();
    match ids.len() > limits.max_stop_ids {
        true => Err(ApiError::field(
            "stop_token_ids",
            format!("use at most {} tokens", limits.max_stop_ids),
        )),
        false => Ok(ids),
    }
}

/// Reads the sampler's fields. What is missing has OpenAI's default: temperature 1, and nothing else changes the
/// distribution.
fn sampling(fields: &mut Fields, limits: &Limits) -> Result<SamplingParams, ApiError> {
    let default = SamplingParams::default();
    let mut sampling = SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..default
    };
    let s = &mut sampling;
    let mut number = |names: &[&str], to: &mut f32| {
        if let Some(value) = fields.take_any(names)? {
            *to = rounded(value);
        }
        Ok::<(), ApiError>(())
    };
    let Xtc {
        probability,
        threshold,
    } = &mut s.xtc;
    let DynamicTemperature { range, exponent } = &mut s.dynamic_temperature;
    number(&["temperature"], &mut s.temperature)?;
    number(&["top_p"], &mut s.top_p)?;
    number(&["min_p"], &mut s.min_p)?;
    number(&["typical_p"], &mut s.typical_p)?;
    number(&["top_n_sigma"], &mut s.top_n_sigma)?;
    number(&["presence_penalty"], &mut s.presence_penalty)?;
    number(&["frequency_penalty"], &mut s.frequency_penalty)?;
    number(
        &["repetition_penalty", "repeat_penalty"],
        &mut s.repeat_penalty,
    )?;
    number(&["xtc_probability"], probability)?;
    number(&["xtc_threshold"], threshold)?;
    number(&["dynatemp_range"], range)?;
    number(&["dynatemp_exponent"], exponent)?;
    number(&["dry_multiplier"], &mut s.dry.multiplier)?;
    number(&["dry_base"], &mut s.dry.base)?;
    // Negative numbers mean all, as in llama.cpp and vLLM.
    let mut count = |name: &str, to: &mut usize, all: usize| {
        if let Some(value) = fields.take::<i64>(name)? {
            *to = usize::try_from(value).unwrap_or(all);
        }
        Ok::<(), ApiError>(())
    };
    count("top_k", &mut s.top_k, 0)?;
    count("repeat_last_n", &mut s.penalty_last_n, usize::MAX)?;
    count("dry_allowed_length", &mut s.dry.allowed_length, 0)?;
    count("dry_penalty_last_n", &mut s.dry.last_n, usize::MAX)?;
    if let Some(breakers) = fields.take("dry_sequence_breakers")? {
        s.dry = Dry {
            sequence_breakers: breakers,
            ..std::mem::take(&mut s.dry)
        };
    }
    match fields.take("mirostat")?.unwrap_or(0) {
        0 => {}
        2 => s.mirostat = Some(Mirostat::default()),
        _ => return Err(ApiError::field("mirostat", "use 0 (off) or 2")),
    }
    let (tau, eta) = (fields.take("mirostat_tau")?, fields.take("mirostat_eta")?);
    if let Some(mirostat) = &mut s.mirostat {
        mirostat.tau = tau.map_or(mirostat.tau, rounded);
        mirostat.eta = eta.map_or(mirostat.eta, rounded);
    }
    if let Some(names) = fields.take::<Vec<String>>("samplers")? {
        let kinds = names.iter().map(|name| name.parse::<SamplerKind>());
        let kinds: Result<Vec<SamplerKind>, _> = kinds.collect();
        s.samplers = kinds.map_err(|error| ApiError::field("samplers", error.to_string()))?;
    }
    s.logit_bias = biases(fields, limits)?;
    // Any whole number, as clients send -1 for "random".
    s.seed = match fields.take::<i64>("seed")? {
        None | Some(-1) => random_seed(),
        Some(seed) => seed.cast_unsigned(),
    };
    sampling.validate().map_err(|error| {
        let name = error.name.replace('-', "_");
        ApiError::field(name, error.to_string())
    })?;
    Ok(sampling)
}

/// Rounds a number. One just beyond a bound, 0 or 1, must not become the bound.
fn rounded(value: f64) -> f32 {
    let nearest = value as f32;
    let is_whole = nearest.fract() == 0.0;
    match f64::from(nearest).total_cmp(&value) {
        Ordering::Less if is_whole && nearest >= 1.0 => nearest.next_up(),
        Ordering::Greater if is_whole && nearest <= 0.0 => nearest.next_down(),
        _ => nearest,
    }
}

/// Reads OpenAI's object `{"id": bias}` or llama-server's list `[[id, bias]]`, in which false forbids a token.
fn biases(fields: &mut Fields, limits: &Limits) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let wrong = || {
        ApiError::field(
            "logit_bias",
            "use an object of token ids and numbers, such as {\"42\": -100}",
        )
    };
    let bias = |id: Option<TokenId>, bias: &Value| {
        let bias = match bias {
            Value::Bool(false) => Some(f32::NEG_INFINITY),
            bias => bias.as_f64().map(|bias| bias as f32),
        };
        id.zip(bias).ok_or_else(wrong)
    };
    let biases: Vec<(TokenId, f32)> = match fields.take::<Value>("logit_bias")? {
        None => Vec::new(),
        Some(Value::Object(map)) => {
            let biases = map.iter().map(|(id, value)| bias(id.parse().ok(), value));
            biases.collect::<Result<_, _>>()?
        }
        Some(Value::Array(list)) => {
            let biases = list
                .iter()
                .map(|pair| match pair.as_array().map(Vec::as_slice) {
                    Some([id, value]) => bias(id.as_u64().and_then(|id| id.try_into().ok()), value),
                    _ => Err(wrong()),
                });
            biases.collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    match biases.len() > limits.max_biases {
        true => Err(ApiError::field(
            "logit_bias",
            format!("use at most {} tokens", limits.max_biases),
        )),
        false => Ok(biases),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 128 copies of a prompt of millions of tokens would fill the memory before the engine refuses it.
    #[test]
    fn answers_share_their_prompt() {
        let mut fields = Fields::parse(br#"{"n": 128}"#).unwrap();
        let limits = Limits::default();
        let generation = Generation::read(&mut fields, &Caller::default(), &limits).unwrap();
        let form = Form {
            special_text: SpecialText::Hide,
            leading_space: LeadingSpace::Keep,
            logprobs: None,
            structure: None,
        };
        let prompt: Arc<[TokenId]> = vec![1; 100].into();
        let requests = generation.requests(&prompt, &form);
        assert_eq!(requests.len(), 128);
        let is_shared = |request: &Request| Arc::ptr_eq(&request.prompt, &prompt);
        assert!(requests.iter().all(is_shared));
    }
}
