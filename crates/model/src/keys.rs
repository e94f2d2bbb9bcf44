//! Typed access to the metadata of one architecture, with range checks.

use rocmforge_gguf::{Error, Gguf, Metadata};

use crate::error::LoadError;

/// Upper bounds for metadata values, above those of any real model; a larger value means a damaged file.
pub(crate) const MAX_LAYERS: usize = 4096;
pub(crate) const MAX_DIM: usize = 1 << 24;
pub(crate) const MAX_EXPERTS: usize = 1024;

/// Reads keys of the GGUF specification, prefixed by the architecture's name.
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) meta: &'a Metadata,
    pub(crate) arch: &'a str,
}

impl Keys<'_> {
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
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
