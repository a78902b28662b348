//! What is done with two trees: whole parts at once where either is full or empty.

use super::tree::{LEAF_LAYER, Tree, Words};

/// An operation of sets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Union,
    Subtract,
    Intersect,
}

/// `a` becomes `a op b`. Both cover chunks from 0; `a` is at least as tall as `b`, which is empty above its layer.
pub(super) fn combine(op: Op, a: &mut Tree, a_layer: u32, b: &Tree, b_layer: u32) {
    if a_layer > b_layer {
        if *a == Tree::Empty && op != Op::Union {
            return;
        }
        let halves = a.halves();
        if op == Op::Intersect {
            halves[1] = Tree::Empty;
        }
        combine(op, &mut halves[0], a_layer - 1, b, b_layer);
        return a.settle();
    }
    match (op, &*a, b) {
        // What leaves `a` as it is.
        (Op::Union, Tree::Full, _)
        | (Op::Subtract | Op::Intersect, Tree::Empty, _)
        | (Op::Union | Op::Subtract, _, Tree::Empty)
        | (Op::Intersect, _, Tree::Full) => {}
        (Op::Union, _, Tree::Full) => *a = Tree::Full,
        (Op::Subtract, _, Tree::Full) | (Op::Intersect, _, Tree::Empty) => *a = Tree::Empty,
        (Op::Union, Tree::Empty, _) | (Op::Intersect, Tree::Full, _) => a.clone_from(b),
        _ if a_layer == LEAF_LAYER => {
            let (mut words, other) = (bits(a), bits(b));
            for (word, other) in words.iter_mut().zip(other) {
                match op {
                    Op::Union => *word |= other,
                    Op::Subtract => *word &= !other,
                    Op::Intersect => *word &= other,
                }
            }
            *a = Tree::leaf(words);
        }
        (_, _, Tree::Fork(others)) => {
            let halves = a.halves();
            combine(op, &mut halves[0], a_layer - 1, &others[0], b_layer - 1);
            combine(op, &mut halves[1], a_layer - 1, &others[1], b_layer - 1);
            a.settle();
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
