//! What is done with two trees: whole parts at once where either is full or empty.

use super::tree::{LEAF_LAYER, Tree, Words};

/// An operation of sets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Union,
    Subtract,
    Intersect,
}

/// `a` becomes `a op b`. Both cover chunks from 0; `a` is at least as tall as `b`, which is empty above its layer. `cells` are those of the
/// tree that `a` is, or is a part of.
pub(super) fn combine(op: Op, (a, a_layer): (&mut Tree, u32), (b, b_layer): (&Tree, u32), cells: &mut usize) {
    if a_layer > b_layer {
        if *a == Tree::Empty && op != Op::Union {
            return;
        }
        let halves = a.halves(cells);
        if op == Op::Intersect {
            halves[1].replace(Tree::Empty, cells);
        }
        combine(op, (&mut halves[0], a_layer - 1), (b, b_layer), cells);
        return a.settle(cells);
    }
    match (op, &*a, b) {
        // What leaves `a` as it is.
        (Op::Union, Tree::Full, _)
        | (Op::Subtract | Op::Intersect, Tree::Empty, _)
        | (Op::Union | Op::Subtract, _, Tree::Empty)
        | (Op::Intersect, _, Tree::Full) => {}
        (Op::Union, _, Tree::Full) => a.replace(Tree::Full, cells),
        (Op::Subtract, _, Tree::Full) | (Op::Intersect, _, Tree::Empty) => a.replace(Tree::Empty, cells),
        (Op::Union, Tree::Empty, _) | (Op::Intersect, Tree::Full, _) => a.replace(b.clone(), cells),
        _ if a_layer == LEAF_LAYER => {
            let (mut words, other) = (bits(a), bits(b));
            for (word, other) in words.iter_mut().zip(other) {
                match op {
                    Op::Union => *word |= other,
                    Op::Subtract => *word &= !other,
                    Op::Intersect => *word &= other,
                }
            }
            a.replace(Tree::leaf(words), cells);
        }
        (_, _, Tree::Fork(others)) => {
            let halves = a.halves(cells);
            combine(op, (&mut halves[0], a_layer - 1), (&others[0], b_layer - 1), cells);
            combine(op, (&mut halves[1], a_layer - 1), (&others[1], b_layer - 1), cells);
            a.settle(cells);
        }
        // Bitmaps lie at their own layer alone.
        (_, _, Tree::Leaf(_)) => {}
    }
}

fn bits(tree: &Tree) -> Words {
    match tree {
        Tree::Leaf(words) => **words,
        Tree::Full => [u64::MAX; _],
        _ => [0; _],
    }
}
