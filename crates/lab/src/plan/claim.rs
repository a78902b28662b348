//! What must hold, as plans say it: `goodput(5as, scion) >= 1.3 * goodput(5as, bgp)`.
//!
//! Numbers, means of cells, what their networks bound (`bound`, `fluid`), `max(...)`, `+ - * /`, parentheses, and one comparison or a chain of them (`a < b < c`). A cell is named by
//! what tells it from the others: its candidate, its placement where there are several, its connections where they are swept.

use super::limits::{CLAIM_DEPTH_MAX, CLAIM_PARTS_MAX};
use super::{Cell, Measure};

/// Something that must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// As the plan writes it.
    pub text: String,
    /// Why, or where it is from.
    pub why: Option<String>,
    sides: Vec<Term>,
    comparisons: Vec<Comparison>,
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It holds; the values of its sides.
    Holds(Vec<f64>),
    /// It does not; the values of its sides.
    Fails(Vec<f64>),
    /// A cell has no result, or nothing bounds it.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What a claim may ask of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The mean of what was measured.
    Mean(Measure),
    /// The goodput that no swarm exceeds, see [`crate::fluid`]; Mbit/s.
    Bound,
    /// What all pairs carry in the fluid model; Mbit/s.
    Fluid,
}

impl Quantity {
    fn named(word: &str) -> Option<Self> {
        match word {
            "bound" => Some(Self::Bound),
            "fluid" => Some(Self::Fluid),
            _ => Measure::ALL.into_iter().find(|measure| measure.name() == word).map(Self::Mean),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Number(f64),
    Of(Quantity, Cell),
    Most(Vec<Self>),
    Two(Box<Self>, char, Box<Self>),
}

impl Claim {
    /// Reads a claim; `cell` finds the one that names stand for.
    pub(super) fn read(
        text: &str,
        why: Option<String>,
        cell: &dyn Fn(&[&str]) -> Result<Cell, String>,
    ) -> Result<Self, String> {
        let mut reader = Reader { rest: text, parts: 0, cell };
        let (mut sides, mut comparisons) = (vec![reader.sum(0)?], Vec::new());
        while let Some(comparison) = reader.comparison() {
            comparisons.push(comparison);
            sides.push(reader.sum(0)?);
        }
        if !reader.rest.trim().is_empty() {
            return Err(format!("`{}` cannot stand there: write {EXAMPLE}", reader.rest.trim()));
        }
        if comparisons.is_empty() {
            return Err(format!("a claim compares: write {EXAMPLE}"));
        }
        Ok(Self { text: text.to_owned(), why, sides, comparisons })
    }

    /// The claim where its cells have other places, if each has one.
    pub(super) fn of_other_cells(&self, moved: &dyn Fn(&Cell) -> Option<Cell>) -> Option<Self> {
        let sides = self.sides.iter().map(|side| side.of_other_cells(moved)).collect::<Option<_>>()?;
        Some(Self { sides, ..self.clone() })
    }

    /// Whether it holds, given what is known of cells.
    pub fn judge(&self, known: &dyn Fn(Quantity, &Cell) -> Option<f64>) -> Verdict {
        let Some(values) = self.sides.iter().map(|side| side.value(known)).collect::<Option<Vec<f64>>>() else {
            return Verdict::Unknown;
        };
        let holds = self.comparisons.iter().zip(values.windows(2)).all(|(comparison, pair)| match comparison {
            Comparison::Less => pair[0] < pair[1],
            Comparison::LessOrEqual => pair[0] <= pair[1],
            Comparison::Greater => pair[0] > pair[1],
            Comparison::GreaterOrEqual => pair[0] >= pair[1],
        });
        if holds { Verdict::Holds(values) } else { Verdict::Fails(values) }
    }
}

impl Term {
    fn of_other_cells(&self, moved: &dyn Fn(&Cell) -> Option<Cell>) -> Option<Self> {
        Some(match self {
            Self::Number(number) => Self::Number(*number),
            Self::Of(quantity, cell) => Self::Of(*quantity, moved(cell)?),
            Self::Most(all) => Self::Most(all.iter().map(|each| each.of_other_cells(moved)).collect::<Option<_>>()?),
            Self::Two(a, sign, b) => {
                Self::Two(Box::new(a.of_other_cells(moved)?), *sign, Box::new(b.of_other_cells(moved)?))
            }
        })
    }

    fn value(&self, known: &dyn Fn(Quantity, &Cell) -> Option<f64>) -> Option<f64> {
        Some(match self {
            Self::Number(number) => *number,
            Self::Of(quantity, cell) => known(*quantity, cell)?,
            Self::Most(all) => {
                let values = all.iter().map(|each| each.value(known)).collect::<Option<Vec<f64>>>()?;
                values.into_iter().reduce(f64::max)?
            }
            Self::Two(a, sign, b) => {
                let (a, b) = (a.value(known)?, b.value(known)?);
                match sign {
                    '+' => a + b,
                    '-' => a - b,
                    '*' => a * b,
                    _ => a / b,
                }
            }
        })
        .filter(|value| value.is_finite())
    }
}

const EXAMPLE: &str = "something like goodput(scion) >= 1.3 * goodput(bgp)";

struct Reader<'a> {
    rest: &'a str,
    parts: usize,
    cell: &'a dyn Fn(&[&str]) -> Result<Cell, String>,
}

impl Reader<'_> {
    fn comparison(&mut self) -> Option<Comparison> {
        let signs = [
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let rest = self.rest.trim_start();
        let (sign, comparison) = signs.into_iter().find(|(sign, _)| rest.starts_with(sign))?;
        self.rest = &rest[sign.len()..];
        Some(comparison)
    }

    fn take(&mut self, signs: &[char]) -> Option<char> {
        let rest = self.rest.trim_start();
        let sign = rest.chars().next().filter(|sign| signs.contains(sign))?;
        self.rest = &rest[sign.len_utf8()..];
        Some(sign)
    }

    fn sum(&mut self, depth: usize) -> Result<Term, String> {
        let mut term = self.product(depth)?;
        while let Some(sign) = self.take(&['+', '-']) {
            term = Term::Two(Box::new(term), sign, Box::new(self.product(depth)?));
        }
        Ok(term)
    }

    fn product(&mut self, depth: usize) -> Result<Term, String> {
        let mut term = self.atom(depth)?;
        while let Some(sign) = self.take(&['*', '/']) {
            term = Term::Two(Box::new(term), sign, Box::new(self.atom(depth)?));
        }
        Ok(term)
    }

    fn atom(&mut self, depth: usize) -> Result<Term, String> {
        self.parts += 1;
        if self.parts > CLAIM_PARTS_MAX || depth > CLAIM_DEPTH_MAX {
            return Err("the claim is too long: split it".into());
        }
        if self.take(&['(']).is_some() {
            let term = self.sum(depth + 1)?;
            return self.take(&[')']).map(|_| term).ok_or_else(|| "a `)` is missing: close every parenthesis".into());
        }
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-')).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let number = word.parse::<f64>().map_err(|_| format!("`{word}` is no number: write it as in 1.3"))?;
            self.rest = after;
            return Ok(Term::Number(number));
        }
        if let Some(after) = after.trim_start().strip_prefix('(').filter(|_| word == "max") {
            self.rest = after;
            let mut all = vec![self.sum(depth + 1)?];
            while self.take(&[',']).is_some() {
                all.push(self.sum(depth + 1)?);
            }
            let closed = self.take(&[')']).ok_or_else(|| "a `)` is missing: close every parenthesis".to_owned());
            return closed.map(|_| Term::Most(all));
        }
        let Some(quantity) = Quantity::named(word) else {
            return Err(format!("`{word}` is no measure: use bound, fluid, max, {}", Measure::NAMES));
        };
        let inside = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        let (names, after) = inside.ok_or_else(|| format!("`{word}` needs a cell behind it: write {EXAMPLE}"))?;
        self.rest = after;
        let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Ok(Term::Of(quantity, (self.cell)(&names)?))
    }
}
