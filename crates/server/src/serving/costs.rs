//! What the steps of a model cost at least, by the roofline of its device.

use std::sync::Arc;

use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_model::Model;
use rocmforge_plan::{BatchShape, KvTypes, Plan, PlanCost, Roofline, Weights};

/// The operations of a model and the peaks of its device.
pub struct Costs {
    plan: Plan,
    weights: Arc<Weights>,
    kv_types: KvTypes,
    /// Without peaks, nobody knows.
    roofline: Option<Roofline>,
}

impl Costs {
    /// Takes the operations of `model` as `engine`, which `config` started, runs them.
    pub fn new(
        model: &Model,
        (engine, config): (&Engine, &EngineConfig),
        roofline: Option<Roofline>,
    ) -> Costs {
        Costs {
            plan: engine.running_plan(model),
            weights: Arc::clone(&model.weights),
            kv_types: config.kv_types,
            roofline,
        }
    }

    /// Returns the operations in words, the same ones for the same operations.
    pub(crate) fn describe_plan(&self) -> String {
        format!("{:?}", self.plan)
    }

    pub(crate) fn kv_types(&self) -> KvTypes {
        self.kv_types
    }

    /// Returns the seconds of a step with every operation at the roofline, if the peaks are known.
    pub(crate) fn least_seconds(&self, shape: &BatchShape) -> Option<f64> {
        let cost = PlanCost {
            plan: &self.plan,
            weights: &self.weights,
            kv_types: self.kv_types,
        };
        let roofline = self.roofline.as_ref()?;
        Some(cost.step_seconds(shape, roofline))
    }
}
