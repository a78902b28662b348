//! The forms of a plan: all of it, what is run where nobody says otherwise, and what takes minutes.

use std::collections::HashMap;
use std::time::Duration;

use anabranch_asnet::topology::document::{Fields, Node};

use super::limits::REPETITIONS_MAX;
use super::read::{Located, count, known, size, told};
use super::{Axis, Cell, Claim, Plan, Scale, When, scale};

/// How much of a plan is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// All cells and whole contents: the paper's scale, where there is one.
    #[default]
    Full,
    /// What the plan's `[standard]` leaves: all such plans together take an afternoon. The full form, where there is none.
    Standard,
    /// What its `[quick]` leaves: all together take minutes.
    Quick,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Standard, Self::Quick];

    /// As results write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Standard => "standard",
            Self::Quick => "quick",
        }
    }
}

/// What a shorter form leaves of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reduction {
    /// How often each cell is run.
    pub repetitions: Option<u32>,
    /// Bytes of the file that is fetched.
    pub content_bytes: Option<u64>,
    /// What the rates of links are divided by.
    pub scale: Option<Scale>,
    /// What of the axes is left, by the names of their values; all of those that are not here.
    pub kept: Vec<(Axis, Vec<String>)>,
}

/// Reads `[quick]` or `[standard]`.
pub(super) fn reduction(node: &Node, plan: &Plan) -> Located<Reduction> {
    let mut fields = told(Fields::new(node, "a shorter form"))?;
    let repetitions = fields.get("repetitions").map(|node| count(node, "repetitions", REPETITIONS_MAX)).transpose()?;
    let content_bytes = fields.get("size").map(|node| size(node, "size")).transpose()?;
    let scale = fields.get("scale").map(|node| scale::read(node, plan)).transpose()?;
    let mut kept = Vec::new();
    for (key, axis) in [
        ("candidates", Axis::Candidate),
        ("placements", Axis::Placement),
        ("connections", Axis::Connections),
        ("variants", Axis::Variant),
    ] {
        let Some(node) = fields.get(key) else { continue };
        let items = told(node.list(key, "a list of those that are kept, as in [\"scion\", \"bgp\"]"))?;
        let values = plan.values(axis);
        let names = items.iter().map(|item| known(item, key, &values)).collect::<Located<Vec<String>>>()?;
        if names.is_empty() {
            return Err((node.line, format!("`{key}` is empty: keep one of {}", values.join(", "))));
        }
        kept.push((axis, names));
    }
    told(fields.finish())?;
    Ok(Reduction { repetitions, content_bytes, scale, kept })
}

/// Whether a form has what figures set the others in relation to.
pub(super) fn keeps_references(plan: &Plan, reduction: &Reduction, node: &Node) -> Located<()> {
    let kept = reduction.kept.iter().find(|(axis, _)| *axis == Axis::Candidate).map(|(_, names)| names);
    let Some(kept) = kept else { return Ok(()) };
    match plan.figures.iter().filter_map(|figure| figure.relative_to.as_ref()).find(|each| !kept.contains(each)) {
        Some(gone) => Err((node.line, format!("figures are in relation to `{gone}`: keep it among `candidates`"))),
        None => Ok(()),
    }
}

impl Plan {
    /// The plan, which is whole, in another form. Join times and events are nearer in proportion to the content, so that a crowd that
    /// comes early in a long transfer does not come after a short one.
    #[must_use]
    pub fn in_form(mut self, form: Form) -> Self {
        let reduction = match form {
            Form::Full => return self,
            Form::Standard => match self.standard.take() {
                Some(standard) => standard,
                None => return self,
            },
            Form::Quick => std::mem::take(&mut self.quick),
        };
        self.form = form;
        self.repetitions = reduction.repetitions.unwrap_or(self.repetitions);
        let bytes = reduction.content_bytes.unwrap_or(self.content_bytes);
        let part = bytes as f64 / self.content_bytes as f64;
        self.content_bytes = bytes;
        self.scale = reduction.scale.unwrap_or(self.scale);
        let shorten = |time: &mut Duration| *time = time.mul_f64(part.min(1.0));
        self.placements.iter_mut().flat_map(|each| &mut each.peers).for_each(|peer| shorten(&mut peer.join));
        for event in &mut self.events {
            if let When::At(at) = &mut event.when {
                shorten(at);
            }
            event.length.iter_mut().for_each(shorten);
        }
        self.thin_out(&reduction.kept);
        self
    }

    /// Leaves the cells out that a form does not have, and what is claimed and drawn of them alone.
    fn thin_out(&mut self, kept: &[(Axis, Vec<String>)]) {
        let names: HashMap<Cell, String> =
            self.cells().into_iter().map(|cell| (cell.clone(), self.name(&cell))).collect();
        for (axis, kept) in kept {
            match axis {
                Axis::Candidate => self.candidates.retain(|each| kept.contains(&each.name)),
                Axis::Placement => self.placements.retain(|each| kept.contains(&each.name)),
                Axis::Connections => self.connections.retain(|each| kept.contains(&each.to_string())),
                Axis::Variant => self.variants.retain(|each| kept.contains(&each.name)),
            }
        }
        let values: Vec<String> = Axis::ALL.into_iter().flat_map(|axis| self.values(axis)).collect();
        self.figures.retain(|figure| figure.of.iter().all(|name| values.contains(name)));
        let left: HashMap<String, Cell> = self.cells().into_iter().map(|cell| (self.name(&cell), cell)).collect();
        let moved = |cell: &Cell| left.get(names.get(cell)?).cloned();
        let claims: Vec<Claim> = self.claims.iter().filter_map(|claim| claim.of_other_cells(&moved)).collect();
        self.claims_left_out = self.claims.len() - claims.len();
        self.claims = claims;
    }
}
