//! Typed access to the metadata of one architecture, with range checks.

use rocmforge_gguf::{Error, Gguf, Metadata, Value};

use crate::error::LoadError;

/// Upper bounds for metadata values, above those of any real model; a larger value means a damaged file.
pub(crate) const MAX_LAYERS: usize = 4096;
pub(crate) const MAX_DIM: usize = 1 << 24;
/// Rotated values of a head: RoPE has a table of them.
pub(crate) const MAX_ROTATED: usize = 1 << 16;
pub(crate) const MAX_EXPERTS: usize = 1024;

/// Reads keys of the GGUF specification, prefixed by the architecture's name.
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) meta: &'a Metadata,
    pub(crate) arch: &'a str,
    /// Which of the file's layers are read.
    pub(crate) part: Part,
}

/// The layers of a file that a plan is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those that text depends on.
    Text,
    /// All: the first of those that predict further tokens ahead is recorded, as a model of its own.
    Drafter,
    /// All, of a file in which each predicts further tokens ahead.
    Assistant,
}

impl Keys<'_> {
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// Returns the number of layers that predict further tokens ahead.
    pub(crate) fn n_nextn(&self) -> Result<usize, LoadError> {
        let n = self.opt_count("nextn_predict_layers", MAX_LAYERS)?;
        Ok(n.unwrap_or(0))
    }

    pub(crate) fn bad(
        &self,
        name: &str,
        value: impl std::fmt::Display,
        wanted: &'static str,
    ) -> LoadError {
        LoadError::BadMetadata {
            key: self.key(name),
            value: value.to_string(),
            wanted,
        }
    }

    pub(crate) fn unsupported(&self, feature: impl Into<String>) -> LoadError {
        LoadError::UnsupportedFeature {
            arch: self.arch.to_string(),
            feature: feature.into(),
        }
    }

    pub(crate) fn size(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.check_size(name, self.meta.u64(&self.key(name))?, max)
    }

    pub(crate) fn opt_size(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        self.meta
            .opt_u64(&self.key(name))?
            .map(|value| self.check_size(name, value, max))
            .transpose()
    }

    /// As [`Keys::opt_size`]; zero is a number as well.
    pub(crate) fn opt_count(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.meta.opt_u64(&self.key(name))? else {
            return Ok(None);
        };
        match usize::try_from(value) {
            Ok(count) if count <= max => Ok(Some(count)),
            _ => Err(self.bad(name, value, "a sensible number")),
        }
    }

    /// As [`Keys::opt_size`]; zero means absent, as in llama.cpp.
    pub(crate) fn size_or_zero(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        match self.meta.opt_u64(&self.key(name))? {
            Some(0) => Ok(None),
            _ => self.opt_size(name, max),
        }
    }

    pub(crate) fn n_layers(&self) -> Result<usize, LoadError> {
        self.size("block_count", MAX_LAYERS)
    }

    /// Reads a number for each of `n_layers` layers: one for all of them, or a list.
    pub(crate) fn opt_sizes(
        &self,
        name: &str,
        n_layers: usize,
        max: usize,
    ) -> Result<Option<Vec<usize>>, LoadError> {
        let Some(numbers) = self.listed(name, n_layers)? else {
            let size = self.opt_size(name, max)?;
            return Ok(size.map(|size| vec![size; n_layers]));
        };
        let sizes = numbers.into_iter().map(|n| self.check_size(name, n, max));
        sizes.collect::<Result<Vec<usize>, LoadError>>().map(Some)
    }

    /// As [`Keys::sizes`]; zero is a number as well.
    pub(crate) fn counts(
        &self,
        name: &str,
        n_layers: usize,
        max: usize,
    ) -> Result<Vec<usize>, LoadError> {
        let Some(numbers) = self.listed(name, n_layers)? else {
            return match self.opt_count(name, max)? {
                Some(count) => Ok(vec![count; n_layers]),
                None => Err(Error::MissingKey {
                    key: self.key(name),
                }
                .into()),
            };
        };
        let count = |n: u64| match n {
            0 => Ok(0),
            n => self.check_size(name, n, max),
        };
        numbers.into_iter().map(count).collect()
    }

    /// Reads a list of one number or more, each at most `max`.
    pub(crate) fn list(&self, name: &str, max: usize) -> Result<Vec<usize>, LoadError> {
        let wanted = "a list of numbers";
        let key = self.key(name);
        let list = match self.meta.get(&key) {
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.bad(name, "no list", wanted)),
            None => return Err(Error::MissingKey { key }.into()),
        };
        if !(1..=MAX_LAYERS).contains(&list.len()) {
            return Err(self.bad(name, format!("{} numbers", list.len()), wanted));
        }
        let number = |value: Value<'_>| {
            let number = value.as_int().and_then(|n| usize::try_from(n).ok());
            number.filter(|n| *n <= max)
        };
        let numbers: Option<Vec<usize>> = list.iter().map(number).collect();
        numbers.ok_or_else(|| self.bad(name, "another kind of list", wanted))
    }

    /// Reads a list with a number for each of `n_layers` layers; `None` if the value is no list.
    fn listed(&self, name: &str, n_layers: usize) -> Result<Option<Vec<u64>>, LoadError> {
        let Some(Value::Array(list)) = self.meta.get(&self.key(name)) else {
            return Ok(None);
        };
        let number = |value: Value<'_>| value.as_int().and_then(|n| u64::try_from(n).ok());
        let numbers: Option<Vec<u64>> = list.iter().take(MAX_LAYERS + 1).map(number).collect();
        let Some(numbers) = numbers else {
            return Err(self.bad(name, "another kind of list", "a number for each layer"));
        };
        if numbers.len() != n_layers {
            let found = format!("{} numbers", numbers.len());
            return Err(self.bad(name, found, "a number for each layer"));
        }
        Ok(Some(numbers))
    }

    /// As [`Keys::opt_sizes`], of a key that must be there.
    pub(crate) fn sizes(
        &self,
        name: &str,
        n_layers: usize,
        max: usize,
    ) -> Result<Vec<usize>, LoadError> {
        match self.opt_sizes(name, n_layers, max)? {
            Some(sizes) => Ok(sizes),
            // The error says that the key is missing.
            None => self.size(name, max).map(|size| vec![size; n_layers]),
        }
    }

    /// Reads a number for each of `n_layers` layers, as [`Keys::positive_or_zero`]: one for all of them, or a list.
    pub(crate) fn positives_or_zeros(
        &self,
        name: &str,
        n_layers: usize,
    ) -> Result<Vec<Option<f32>>, LoadError> {
        let Some(Value::Array(list)) = self.meta.get(&self.key(name)) else {
            let number = self.positive_or_zero(name)?;
            return Ok(vec![number.map(|number| number as f32); n_layers]);
        };
        let wanted = "a positive number or 0 for each layer";
        if list.len() != n_layers {
            return Err(self.bad(name, format!("{} numbers", list.len()), wanted));
        }
        let number = |value: Value<'_>| match value {
            Value::F32(0.0) => Ok(None),
            Value::F32(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.bad(name, "another kind of list", wanted)),
        };
        list.iter().map(number).collect()
    }

    /// Reads a number for each of `n_layers` layers from the key `key` without a prefix: one for all of them, or a list.
    pub(crate) fn unprefixed_numbers(
        &self,
        key: &str,
        n_layers: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let number = |value: &Value<'_>| match value {
            Value::F32(number) if number.is_finite() => Some(*number),
            _ => None,
        };
        let found = match self.meta.get(key) {
            None => return Err(Error::MissingKey { key: key.into() }.into()),
            Some(Value::Array(list)) if list.len() == n_layers => {
                list.iter().map(|value| number(&value)).collect()
            }
            Some(value) => number(&value).map(|number| vec![number; n_layers]),
        };
        found.ok_or_else(|| LoadError::BadMetadata {
            key: key.into(),
            value: "another value".into(),
            wanted: "a number, or one for each layer",
        })
    }

    fn check_size(&self, name: &str, value: u64, max: usize) -> Result<usize, LoadError> {
        match usize::try_from(value) {
            Ok(size) if size > 0 && size <= max => Ok(size),
            _ => Err(self.bad(name, value, "a sensible positive number")),
        }
    }

    pub(crate) fn positive(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.meta.opt_f32(&self.key(name))? {
            None => Ok(None),
            Some(value) if value.is_finite() && value > 0.0 => Ok(Some(f64::from(value))),
            Some(value) => Err(self.bad(name, value, "a positive number")),
        }
    }

    pub(crate) fn required_positive(&self, name: &str) -> Result<f64, LoadError> {
        let missing = || Error::MissingKey {
            key: self.key(name),
        };
        Ok(self.positive(name)?.ok_or_else(missing)?)
    }

    /// As [`Keys::positive`]; zero means absent, as in llama.cpp.
    pub(crate) fn positive_or_zero(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.meta.opt_f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.positive(name),
        }
    }
}
