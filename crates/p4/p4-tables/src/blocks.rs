//! Arrays of rows in blocks, which copies of an array share.
//!
//! A copy costs a pointer per block; a row that is changed in a copy costs a copy of its block, unless the
//! block is the copy's own already. So a batch of changes costs what it changes, and whoever has the array
//! from before reads it as it was. The first block grows as it is needed, as most tables are small.
//!
//! Rows of atomics are shared for good: what a thread adds by one copy, all others read.

use std::sync::Arc;

/// Rows of `stride` elements, `ROWS` of them in a block.
#[derive(Debug)]
pub(crate) struct Blocks<T, const ROWS: usize> {
    blocks: Vec<Arc<[T]>>,
    stride: usize,
}

impl<T, const ROWS: usize> Clone for Blocks<T, ROWS> {
    fn clone(&self) -> Self {
        Blocks {
            blocks: self.blocks.clone(),
            stride: self.stride,
        }
    }
}

impl<T: Default, const ROWS: usize> Blocks<T, ROWS> {
    pub fn new(stride: usize) -> Self {
        Blocks {
            blocks: Vec::new(),
            stride,
        }
    }

    #[inline]
    pub fn row(&self, row: u32) -> &[T] {
        let at = row as usize % ROWS * self.stride;
        &self.blocks[row as usize / ROWS][at..at + self.stride]
    }

    /// Adds the block of a row, whole at once, unless it exists.
    pub fn reach_block(&mut self, row: u32) {
        while self.blocks.len() <= row as usize / ROWS {
            self.blocks.push(filled(ROWS * self.stride));
        }
    }

    pub fn memory(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum::<usize>() * size_of::<T>()
            + self.blocks.capacity() * size_of::<Arc<[T]>>()
    }
}

impl<T: Default + Clone, const ROWS: usize> Blocks<T, ROWS> {
    /// A row to change, which no copy has.
    pub fn row_mut(&mut self, row: u32) -> &mut [T] {
        let at = row as usize % ROWS * self.stride;
        &mut Arc::make_mut(&mut self.blocks[row as usize / ROWS])[at..at + self.stride]
    }

    /// Adds rows up to this one, unless they exist.
    pub fn reach(&mut self, row: u32) {
        let rows = row as usize + 1;
        let first = self.blocks.first().map_or(0, |block| block.len());
        if rows > ROWS {
            if first < ROWS * self.stride && self.stride > 0 {
                self.grow_first(ROWS);
            }
            self.reach_block(row);
        } else if first < rows * self.stride || self.blocks.is_empty() {
            self.grow_first(rows.next_power_of_two().min(ROWS));
        }
    }

    fn grow_first(&mut self, rows: usize) {
        let len = rows * self.stride;
        let grown = match self.blocks.first() {
            Some(block) => {
                let more = (block.len()..len).map(|_| T::default());
                block.iter().cloned().chain(more).collect::<Vec<_>>().into()
            }
            None => filled(len),
        };
        match self.blocks.first_mut() {
            Some(block) => *block = grown,
            None => self.blocks.push(grown),
        }
    }
}

fn filled<T: Default>(len: usize) -> Arc<[T]> {
    (0..len).map(|_| T::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_copy_keeps_what_it_had_and_shares_what_did_not_change() {
        let mut rows = Blocks::<u64, 4>::new(2);
        for row in 0..10 {
            rows.reach(row);
            rows.row_mut(row).fill(u64::from(row));
        }
        let before = rows.clone();
        rows.row_mut(5)[1] = 50;
        rows.reach(10);
        assert_eq!((before.row(5), rows.row(5)), (&[5, 5][..], &[5, 50][..]));
        assert!(
            (0..10)
                .filter(|row| *row != 5)
                .all(|row| rows.row(row) == before.row(row)),
            "other rows are the same"
        );
        let shared = |at: usize| Arc::ptr_eq(&rows.blocks[at], &before.blocks[at]);
        assert_eq!([shared(0), shared(1), shared(2)], [true, false, true]);
    }

    #[test]
    fn atomics_are_one_for_all_copies() {
        let mut rows = Blocks::<AtomicU64, 4>::new(1);
        rows.reach_block(2);
        let mut copy = rows.clone();
        copy.reach_block(5);
        copy.row(2)[0].store(7, Ordering::Relaxed);
        assert_eq!(rows.row(2)[0].load(Ordering::Relaxed), 7);
        assert_eq!(rows.memory(), 4 * 8 + rows.blocks.capacity() * 16);
    }
}
