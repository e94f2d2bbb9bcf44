//! Metadata of one architecture: keys with its prefix, values checked for sense.

use rocmforge_gguf::Metadata;

use crate::error::LoadError;

/// Reads keys of the GGUF specification, prefixed by the architecture's name.
pub(super) struct Keys<'a> {
    pub(super) meta: &'a Metadata,
    pub(super) arch: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub(super) fn bad(
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

    pub(super) fn unsupported(&self, feature: impl Into<String>) -> LoadError {
        LoadError::UnsupportedFeature {
            arch: self.arch.to_string(),
            feature: feature.into(),
        }
    }

    pub(super) fn size(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.check_size(name, self.meta.u64(&self.key(name))?, max)
    }

    pub(super) fn opt_size(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        self.meta
            .opt_u64(&self.key(name))?
            .map(|value| self.check_size(name, value, max))
            .transpose()
    }

    fn check_size(&self, name: &str, value: u64, max: usize) -> Result<usize, LoadError> {
        match usize::try_from(value) {
            Ok(size) if size > 0 && size <= max => Ok(size),
            _ => Err(self.bad(name, value, "a sensible positive number")),
        }
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.meta.opt_f32(&self.key(name))? {
            None => Ok(None),
            Some(value) if value.is_finite() && value > 0.0 => Ok(Some(f64::from(value))),
            Some(value) => Err(self.bad(name, value, "a positive number")),
        }
    }

    /// As [`Keys::positive`]; zero stands for none, as in llama.cpp.
    pub(super) fn positive_or_zero(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.meta.opt_f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.positive(name),
        }
    }
}
