//! Memory of a plan's values: values of equal shape that are not needed at the same time share a buffer.
//!
//! A value lives from the operation that writes it to the last one that reads it; operations that change a value in
//! place prolong its life. Lives are intervals, so giving each the first free buffer needs the fewest buffers (the left
//! edge algorithm, Hashimoto and Stevens 1971). An operation never writes a buffer that it reads, except in place.

use std::collections::HashMap;
use std::hash::Hash;

use crate::op::{ActsId, ActsInfo, BufferId, BufferInfo, Plan, RoutingId};

/// Assigns buffers, activation buffers and routings anew, as few as the lives of values allow.
pub(crate) fn share_buffers(plan: Plan) -> Plan {
    assign(plan, Sharing::Any)
}

/// Gives every value a buffer, activation buffer or routing of its own.
pub(crate) fn separate_buffers(plan: Plan) -> Plan {
    assign(plan, Sharing::None)
}

/// Which values may have the same buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Those that are not needed at the same time.
    Any,
    None,
}

fn assign(mut plan: Plan, sharing: Sharing) -> Plan {
    let mut buffers = Lives::<BufferId, BufferInfo>::default();
    let mut acts = Lives::<ActsId, ActsInfo>::default();
    let mut routings = Lives::<RoutingId, [usize; 3]>::default();
    // Every id first becomes the index of its value.
    for (at, op) in plan.ops.iter_mut().enumerate() {
        let reads = op.reads();
        let routed = op.routing_shape(&plan.buffers);
        let converted = op.acts_written().map(|id| plan.acts[id.0 as usize]);
        for id in op.buffers_mut() {
            let shape = plan.buffers[id.0 as usize];
            id.0 = match reads.contains(id) {
                true => buffers.read(*id, at, shape),
                false => buffers.write(*id, at, shape),
            };
        }
        if let Some(id) = op.acts_mut() {
            id.0 = match converted {
                Some(shape) => acts.write(*id, at, shape),
                None => acts.read(*id, at, plan.acts[id.0 as usize]),
            };
        }
        if let Some(id) = op.routing_mut() {
            id.0 = match routed {
                Some(shape) => routings.write(*id, at, shape),
                None => routings.read(*id, at, [0; 3]),
            };
        }
    }
    let shape = plan.buffers[plan.logits.0 as usize];
    plan.logits.0 = buffers.read(plan.logits, plan.ops.len(), shape);

    let (buffer_of, buffers) = buffers.places(sharing);
    let (acts_of, acts) = acts.places(sharing);
    let (routing_of, routings) = routings.places(sharing);
    for op in &mut plan.ops {
        for id in op.buffers_mut() {
            id.0 = buffer_of[id.0 as usize];
        }
        if let Some(id) = op.acts_mut() {
            id.0 = acts_of[id.0 as usize];
        }
        if let Some(id) = op.routing_mut() {
            id.0 = routing_of[id.0 as usize];
        }
    }
    plan.logits.0 = buffer_of[plan.logits.0 as usize];
    Plan {
        buffers,
        acts,
        n_routings: routings.len(),
        ..plan
    }
}

/// The operations, first and last, between which a value is needed.
struct Life<S> {
    shape: S,
    first: usize,
    last: usize,
}

/// The lives of all values of a kind, in the order in which they begin.
struct Lives<I, S> {
    all: Vec<Life<S>>,
    /// The value that each id stands for at the moment.
    current: HashMap<I, usize>,
}

impl<I, S> Default for Lives<I, S> {
    fn default() -> Self {
        Lives {
            all: Vec::new(),
            current: HashMap::new(),
        }
    }
}

impl<I: Eq + Hash, S: Copy + PartialEq> Lives<I, S> {
    /// Returns the index of the value that begins where operation `at` writes `id`.
    fn write(&mut self, id: I, at: usize, shape: S) -> u32 {
        self.current.insert(id, self.all.len());
        self.all.push(Life {
            shape,
            first: at,
            last: at,
        });
        self.all.len() as u32 - 1
    }

    /// Returns the index of the value in `id`, which operation `at` reads.
    fn read(&mut self, id: I, at: usize, shape: S) -> u32 {
        match self.current.get(&id) {
            Some(&value) => {
                self.all[value].last = at;
                value as u32
            }
            None => self.write(id, at, shape),
        }
    }

    /// Returns the place of each value, and the shapes of the places.
    fn places(self, sharing: Sharing) -> (Vec<u32>, Vec<S>) {
        // The last operation that needs each place so far.
        let mut places: Vec<(S, usize)> = Vec::new();
        let mut place_of = Vec::with_capacity(self.all.len());
        for life in &self.all {
            let is_free = |(shape, last): &(S, usize)| {
                sharing == Sharing::Any && *shape == life.shape && *last < life.first
            };
            let place = places.iter().position(is_free).unwrap_or(places.len());
            match places.get_mut(place) {
                Some((_, last)) => *last = life.last,
                None => places.push((life.shape, life.last)),
            }
            place_of.push(place as u32);
        }
        let shapes = places.into_iter().map(|(shape, _)| shape);
        (place_of, shapes.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acts::ActFormat;
    use crate::op::{Op, WeightId};
    use crate::params::Activation;
    use crate::recorder::{Projection, Recorder};

    /// Four activations in a row need two buffers; the sum that is read at the end keeps a third.
    #[test]
    fn values_share_a_buffer_when_one_is_needed_no_more() {
        let mut b = Recorder::new();
        let x = b.embed(WeightId(0), 1.0, 32);
        let kept = b.activate(Activation::Silu, x);
        let mut y = kept;
        for _ in 0..3 {
            y = b.activate(Activation::Silu, y);
        }
        let sum = b.add(y, kept);
        let plan = b.finish(sum);
        assert_eq!(plan.buffers.len(), 3);
        // The sum is in place, so it is where `kept` was.
        let written: Vec<u32> = plan.ops.iter().map(|op| op.writes()[0].0).collect();
        assert_eq!(written, [0, 1, 0, 2, 0, 1]);
        assert_eq!(plan.logits, BufferId(1));
        assert_eq!(share_buffers(plan.clone()), plan);
    }

    #[test]
    fn values_of_other_shapes_and_rows_are_apart() {
        let mut b = Recorder::new();
        let x = b.embed(WeightId(0), 1.0, 32);
        let linear = |weight| Projection::of(WeightId(weight), ActFormat::F32);
        let wide = b.matmul(x, linear(1), 64);
        let narrow = b.matmul(wide, linear(2), 32);
        let rows = b.select_rows(narrow);
        let plan = b.finish(rows);
        // `x` is needed no more when `narrow` is written.
        let of = |op: &Op| op.writes().first().map(|id| plan.buffers[id.0 as usize]);
        let shapes: Vec<BufferInfo> = plan.ops.iter().filter_map(of).collect();
        let widths: Vec<usize> = shapes.iter().map(|info| info.width).collect();
        assert_eq!(widths, [32, 64, 32, 32]);
        assert_eq!(plan.buffers.len(), 3);
        assert_eq!(plan.acts.len(), 2);
    }
}
