//! A rewrite of plans for devices that run all experts of a layer in a few launches: the shared expert of a mixture becomes
//! one more expert, which every token chooses. The products of the experts then take its rows too.
//!
//! The sum over a token's experts adds the shared one last, as the plan before did; only roundings differ.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::fuse::Layers;
use crate::liveness::{separate_buffers, share_buffers};
use crate::op::{ActsId, BufferId, Op, Plan, RoutingId, RowCount, WeightId};
use crate::params::{Activation, ExpertStack, OutMode, RowsOf, SharedWeight, Weighed};
use crate::weights::Weights;

/// Makes shared experts experts that every token chooses, where their matrices have the formats and shapes of those of the
/// other experts, and nothing but the mixture reads its values. A mixture has up to `max_experts`, the shared one counted.
pub fn join_shared_experts(plan: Plan, weights: &Weights, max_experts: usize) -> Plan {
    let mut plan = separate_buffers(plan);
    let uses = Uses::of(&plan);
    let found = uses.routings.values().filter_map(|ops| {
        let found = Mixture::find(&plan, &uses, ops)?;
        found.can_join(&plan, weights, max_experts).then_some(found)
    });
    let found: Vec<Mixture> = found.collect();
    let mut edits = Edits::default();
    for mixture in &found {
        mixture.join(&mut plan, &mut edits);
    }
    edits.apply(&mut plan);
    share_buffers(plan)
}

/// The operations that read or write each value, in order.
struct Uses {
    buffers: HashMap<BufferId, Vec<usize>>,
    acts: HashMap<ActsId, Vec<usize>>,
    routings: BTreeMap<RoutingId, Vec<usize>>,
}

impl Uses {
    fn of(plan: &Plan) -> Uses {
        let mut uses = Uses {
            buffers: HashMap::new(),
            acts: HashMap::new(),
            routings: BTreeMap::new(),
        };
        for (at, op) in plan.ops.iter().enumerate() {
            let buffers: BTreeSet<BufferId> = op.reads().into_iter().chain(op.writes()).collect();
            for id in buffers {
                uses.buffers.entry(id).or_default().push(at);
            }
            for id in op.acts_read().into_iter().chain(op.acts_written()) {
                uses.acts.entry(id).or_default().push(at);
            }
            if let Some(id) = op.routing() {
                uses.routings.entry(id).or_default().push(at);
            }
        }
        uses
    }

    /// Returns the operation that stores a value, if a single other one, `reader`, reads it.
    fn writer(&self, plan: &Plan, id: BufferId, reader: usize) -> Option<usize> {
        match self.buffers[&id][..] {
            [writer, read] if read == reader && id != plan.logits => Some(writer),
            _ => None,
        }
    }

    /// As [`Uses::writer`], of converted activations with one or more readers.
    fn converter(&self, id: ActsId, readers: &[usize]) -> Option<usize> {
        let (&writer, read) = self.acts[&id].split_first()?;
        (read == readers).then_some(writer)
    }
}

/// A matrix of each expert, and that of the shared one.
struct Pair {
    /// The product with the experts' matrices.
    product: usize,
    weight: WeightId,
    stack: ExpertStack,
    shared: WeightId,
}

/// A mixture with a shared expert, by the indices of its operations.
struct Mixture {
    route: usize,
    /// Of gate, up and down.
    pairs: [Pair; 3],
    /// The conversions of the experts' inputs, and of what their last matrices read.
    conversions: [usize; 2],
    activation: usize,
    weight: SharedWeight<BufferId>,
    /// What computes the shared expert, and adds it.
    replaced: Vec<usize>,
    /// What computes its gate, and is after the routing.
    late: Vec<usize>,
}

impl Mixture {
    /// Finds the mixture whose routing `ops` write and read.
    fn find(plan: &Plan, uses: &Uses, ops: &[usize]) -> Option<Mixture> {
        let &[route, into, first, second, between, last, combine] = ops else {
            return None;
        };
        let op = |at: usize| &plan.ops[at];
        let Op::Route { shared: None, .. } = op(route) else {
            return None;
        };
        let &Op::QuantizeExperts {
            x,
            rows_of: RowsOf::Tokens | RowsOf::WeighedTokens,
            out: acts,
            ..
        } = op(into)
        else {
            return None;
        };
        let [gate, up, down] = [first, second, last].map(|at| expert_product(op(at)));
        let (gate, up, down) = (gate?, up?, down?);
        let &Op::CombineExperts {
            x: outputs,
            weighed,
            out: sum,
            ..
        } = op(combine)
        else {
            return None;
        };
        let &Op::QuantizeExperts {
            x: activated,
            rows_of: RowsOf::Choices,
            out: activated_acts,
            ..
        } = op(between)
        else {
            return None;
        };
        let activation = uses.writer(plan, activated, between)?;
        let is_whole = [gate.x, up.x, down.x] == [acts, acts, activated_acts]
            && uses.converter(acts, &[first, second]) == Some(into)
            && uses.converter(activated_acts, &[last]) == Some(between)
            && outputs == down.out
            && uses.writer(plan, outputs, combine) == Some(last)
            && uses.writer(plan, gate.out, activation) == Some(first)
            && uses.writer(plan, up.out, activation) == Some(second);
        let shared = Shared::find(plan, uses, (combine, sum))?;
        let alike = Op::GatedActivation {
            activation: shared.activation,
            gate: gate.out,
            up: up.out,
            out: activated,
        };
        if !is_whole || *op(activation) != alike {
            return None;
        }
        let (weight, of_gate) = match shared.gate {
            None => (SharedWeight::One, None),
            // Weights that multiply inputs do not multiply outputs.
            Some(_) if weighed == Weighed::Inputs => return None,
            Some((gate, ops)) => (SharedWeight::Sigmoid(gate), Some(ops)),
        };
        // All conversions are of the same value.
        let conversions = [Some(shared.into), of_gate.map(|[convert, _]| convert)];
        let conversions = conversions.into_iter().flatten();
        for at in conversions.clone() {
            let is_of_x = matches!(op(at), Op::Quantize { x: of, .. } if *of == x);
            if !is_of_x {
                return None;
            }
        }
        let points = conversions.chain([into, route]);
        let (begin, end) = points.fold((route, route), |(a, b), at| (a.min(at), b.max(at)));
        if plan.ops[begin..end]
            .iter()
            .any(|op| op.writes().contains(&x))
        {
            return None;
        }
        let late = of_gate.into_iter().flatten().filter(|at| *at > route);
        let pair = |of: ExpertProduct, product, shared| Pair {
            product,
            weight: of.weight,
            stack: of.stack,
            shared,
        };
        let [shared_gate, shared_up, shared_down] = shared.matrices;
        Some(Mixture {
            route,
            pairs: [
                pair(gate, first, shared_gate),
                pair(up, second, shared_up),
                pair(down, last, shared_down),
            ],
            conversions: [into, between],
            activation,
            weight,
            replaced: shared.ops,
            late: late.collect(),
        })
    }

    fn can_join(&self, plan: &Plan, weights: &Weights, max_experts: usize) -> bool {
        let fits = |pair: &Pair| {
            let (all, one) = (weights.matrix(pair.weight), weights.matrix(pair.shared));
            let n_out = one.n_out * pair.stack.n_matrices();
            (all.ty, all.n_in, all.n_out) == (one.ty, one.n_in, n_out)
        };
        let shape = plan.ops[self.route].routing_shape(&plan.buffers);
        shape.is_some_and(|[n_experts, ..]| n_experts < max_experts) && self.pairs.iter().all(fits)
    }

    /// Makes the shared expert the last choice of all tokens.
    fn join(&self, plan: &mut Plan, edits: &mut Edits) {
        if let Op::Route { shared, .. } = &mut plan.ops[self.route] {
            *shared = Some(self.weight);
        }
        for pair in &self.pairs {
            if let Op::ExpertMatMul { shared, .. } = &mut plan.ops[pair.product] {
                *shared = Some(pair.shared);
            }
        }
        let of_choices = self.pairs.iter().map(|pair| pair.product);
        for at in of_choices.chain([self.activation]) {
            for id in plan.ops[at].writes() {
                widen(&mut plan.buffers[id.0 as usize].rows);
            }
        }
        for id in self.conversions.map(|at| plan.ops[at].acts_written()) {
            let id = id.expect("conversions write activations");
            widen(&mut plan.acts[id.0 as usize].rows);
        }
        edits.removed.extend(self.replaced.iter().chain(&self.late));
        let late = self.late.iter().map(|&at| plan.ops[at].clone());
        edits.before.insert(self.route, late.collect());
    }
}

fn widen(rows: &mut RowCount) {
    if let RowCount::Choices { n_used } = rows {
        *n_used += 1;
    }
}

/// The operands of a product of experts without factors and biases.
struct ExpertProduct {
    x: ActsId,
    weight: WeightId,
    stack: ExpertStack,
    out: BufferId,
}

fn expert_product(op: &Op) -> Option<ExpertProduct> {
    match *op {
        Op::ExpertMatMul {
            x,
            weight,
            scales: None,
            bias: None,
            stack,
            shared: None,
            out,
            ..
        } => Some(ExpertProduct {
            x,
            weight,
            stack,
            out,
        }),
        _ => None,
    }
}

/// A network `down(activation(gate(x)) * up(x))` that is added to the sum over the experts, maybe times the sigmoid of a gate.
struct Shared {
    /// Of gate, up and down.
    matrices: [WeightId; 3],
    activation: Activation,
    /// The conversion of `x`.
    into: usize,
    /// The value of the gate, and what converts its input and computes it.
    gate: Option<(BufferId, [usize; 2])>,
    /// Its operations but for the conversion of `x` and those of the gate.
    ops: Vec<usize>,
}

impl Shared {
    /// Finds the network that is added to `sum` next after `combine` has stored it.
    fn find(plan: &Plan, uses: &Uses, (combine, sum): (usize, BufferId)) -> Option<Shared> {
        let op = |at: usize| &plan.ops[at];
        let of_sum = &uses.buffers[&sum];
        let &[writer, adds, ..] = &of_sum[..] else {
            return None;
        };
        let (last, gate) = match *op(adds) {
            Op::MatMul {
                mode: OutMode::Add, ..
            } => (adds, None),
            Op::AddGated { gate, x, out } if out == sum && x != sum && gate != sum => {
                let product = uses.writer(plan, gate, adds)?;
                let (acts, _) = stored_product(op(product))?;
                let convert = *uses.acts[&acts].first()?;
                (
                    uses.writer(plan, x, adds)?,
                    Some((gate, [convert, product])),
                )
            }
            _ => return None,
        };
        let &Op::MatMul {
            x: acts,
            weight: down,
            bias: None,
            ..
        } = op(last)
        else {
            return None;
        };
        let convert = uses.converter(acts, &[last])?;
        let &Op::Quantize { x: activated, .. } = op(convert) else {
            return None;
        };
        let activates = uses.writer(plan, activated, convert)?;
        let &Op::GatedActivation {
            activation,
            gate: gated,
            up,
            ..
        } = op(activates)
        else {
            return None;
        };
        let [first, second] = [gated, up].map(|id| uses.writer(plan, id, activates));
        let [first, second] = [first?, second?];
        let [(x, of_gate), (of_up_x, of_up)] =
            [stored_product(op(first))?, stored_product(op(second))?];
        let into = *uses.acts[&x].first()?;
        let mut ops = vec![first, second, activates, convert, last];
        if last != adds {
            ops.push(adds);
        }
        (writer == combine && x == of_up_x).then_some(Shared {
            matrices: [of_gate, of_up, down],
            activation,
            into,
            gate,
            ops,
        })
    }
}

/// Returns the activations and the matrix of a product without a bias.
fn stored_product(op: &Op) -> Option<(ActsId, WeightId)> {
    match *op {
        Op::MatMul {
            x,
            weight,
            bias: None,
            mode: OutMode::Store,
            ..
        } => Some((x, weight)),
        _ => None,
    }
}

/// What becomes of the operations of a plan, by their indices.
#[derive(Default)]
struct Edits {
    removed: HashSet<usize>,
    /// Operations to insert before others.
    before: HashMap<usize, Vec<Op>>,
}

impl Edits {
    /// Rewrites the operations, without conversions that none of them reads.
    fn apply(mut self, plan: &mut Plan) {
        let mut layers = Layers::of(plan);
        let ops = std::mem::take(&mut plan.ops);
        let kept = ops.iter().enumerate();
        let kept = kept.filter(|(at, _)| !self.removed.contains(at));
        let read: HashSet<ActsId> = kept
            .map(|(_, op)| op)
            .chain(self.before.values().flatten())
            .filter_map(Op::acts_read)
            .collect();
        for (at, op) in ops.into_iter().enumerate() {
            layers.reach(at, plan.ops.len());
            plan.ops.extend(self.before.remove(&at).unwrap_or_default());
            let is_read = op.acts_written().is_none_or(|id| read.contains(&id));
            if is_read && !self.removed.contains(&at) {
                plan.ops.push(op);
            }
        }
        plan.layers = layers.after;
    }
}
