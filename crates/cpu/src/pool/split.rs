//! Disjoint parts of one output matrix for the tasks of a dispatch.

use std::marker::PhantomData;
use std::ops::Range;

use super::Pool;

impl Pool {
    /// Splits `out` [n_rows, row_len] into runs of `rows_per_task` rows and calls
    /// `f(first_row, rows)` on each; `rows` holds whole rows.
    ///
    /// # Panics
    /// If `out` is not whole rows, or `rows_per_task` is 0.
    pub fn for_each_rows<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        rows_per_task: usize,
        f: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        if out.is_empty() {
            return;
        }
        assert!(
            row_len > 0 && out.len().is_multiple_of(row_len),
            "out holds whole rows"
        );
        assert!(rows_per_task > 0, "a task has at least one row");
        let len = out.len();
        let chunk = rows_per_task.saturating_mul(row_len);
        let base = SendPtr(out.as_mut_ptr());
        self.run(len.div_ceil(chunk), &|task| {
            let start = task * chunk;
            // SAFETY: task < ceil(len / chunk), so start < len and the range lies in `out`, which
            // is borrowed mutably until `run` returns. Every task runs once, and ranges of
            // different tasks do not overlap.
            let rows = unsafe {
                std::slice::from_raw_parts_mut(base.get().add(start), chunk.min(len - start))
            };
            f(task * rows_per_task, rows);
        });
    }

    /// Splits `out` [n_rows, row_len] into tiles of `rows_per_task` rows by `cols_per_task`
    /// columns and calls `f` on each. Tasks go through all rows of a column range before the next,
    /// so that weights (one row per column of `out`) stay in cache.
    ///
    /// # Panics
    /// If `out` is not whole rows, or a tile size is 0.
    pub fn for_each_tile(
        &self,
        out: &mut [f32],
        row_len: usize,
        rows_per_task: usize,
        cols_per_task: usize,
        f: &(dyn Fn(&mut Tile<'_>) + Sync),
    ) {
        if out.is_empty() {
            return;
        }
        assert!(
            rows_per_task > 0 && cols_per_task > 0,
            "a tile is not empty"
        );
        let matrix = Matrix::new(out, row_len);
        let rows_per_task = rows_per_task.min(matrix.n_rows);
        let cols_per_task = cols_per_task.min(row_len);
        let n_row_tiles = matrix.n_rows.div_ceil(rows_per_task);
        self.run(n_row_tiles * row_len.div_ceil(cols_per_task), &|task| {
            let first_row = task % n_row_tiles * rows_per_task;
            let first_col = task / n_row_tiles * cols_per_task;
            let rows = first_row..(first_row + rows_per_task).min(matrix.n_rows);
            let cols = first_col..(first_col + cols_per_task).min(row_len);
            // SAFETY: different tasks have different row or column ranges of a grid.
            f(&mut unsafe { matrix.tile(rows, cols) });
        });
    }

    /// Splits each of `row_ranges` of `out` [n_rows, row_len] by `cols_per_task` columns and calls
    /// `f(i, tile)` on each part of range `i`. Tasks go through all columns of a range before the
    /// next, so the costliest range should stand first. Rows in no range are left alone.
    ///
    /// # Panics
    /// If `out` is not whole rows, `cols_per_task` is 0, or ranges overlap or leave the matrix.
    pub fn for_each_range(
        &self,
        out: &mut [f32],
        row_len: usize,
        row_ranges: &[Range<usize>],
        cols_per_task: usize,
        f: &(dyn Fn(usize, &mut Tile<'_>) + Sync),
    ) {
        if out.is_empty() {
            assert!(
                row_ranges.iter().all(|r| r.is_empty()),
                "ranges lie in the matrix"
            );
            return;
        }
        assert!(cols_per_task > 0, "a tile is not empty");
        let matrix = Matrix::new(out, row_len);
        let mut sorted: Vec<_> = row_ranges.iter().filter(|r| !r.is_empty()).collect();
        sorted.sort_unstable_by_key(|r| r.start);
        assert!(
            sorted.windows(2).all(|w| w[0].end <= w[1].start),
            "ranges do not overlap"
        );
        assert!(
            sorted.last().is_none_or(|r| r.end <= matrix.n_rows),
            "ranges lie in the matrix"
        );
        let cols_per_task = cols_per_task.min(row_len);
        let n_col_tiles = row_len.div_ceil(cols_per_task);
        self.run(row_ranges.len() * n_col_tiles, &|task| {
            let range = task / n_col_tiles;
            let first_col = task % n_col_tiles * cols_per_task;
            let cols = first_col..(first_col + cols_per_task).min(row_len);
            // SAFETY: different tasks have different column ranges or different row ranges, which
            // were checked not to overlap.
            f(range, &mut unsafe {
                matrix.tile(row_ranges[range].clone(), cols)
            });
        });
    }
}

/// An output matrix that tasks take tiles of.
struct Matrix<'a> {
    base: SendPtr<f32>,
    n_rows: usize,
    row_len: usize,
    out: PhantomData<&'a mut [f32]>,
}

impl<'a> Matrix<'a> {
    fn new(out: &'a mut [f32], row_len: usize) -> Matrix<'a> {
        assert!(
            row_len > 0 && out.len().is_multiple_of(row_len),
            "out holds whole rows"
        );
        let n_rows = out.len() / row_len;
        Matrix {
            base: SendPtr(out.as_mut_ptr()),
            n_rows,
            row_len,
            out: PhantomData,
        }
    }

    /// # Safety
    /// Tiles that exist at the same time must not overlap.
    unsafe fn tile(&self, rows: Range<usize>, cols: Range<usize>) -> Tile<'_> {
        assert!(
            rows.end <= self.n_rows && cols.end <= self.row_len,
            "a tile lies in the matrix"
        );
        Tile {
            base: self.base.get(),
            row_len: self.row_len,
            rows,
            cols,
            out: PhantomData,
        }
    }
}

/// A rectangle of an output matrix that one task owns.
pub struct Tile<'a> {
    base: *mut f32,
    row_len: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    out: PhantomData<&'a mut [f32]>,
}

impl Tile<'_> {
    /// Rows of the whole matrix that this tile covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the whole matrix that this tile covers.
    pub fn cols(&self) -> Range<usize> {
        self.cols.clone()
    }

    /// The same tile of the matrix that begins with row `first` of this one.
    ///
    /// # Panics
    /// If the tile begins above `first`.
    pub(crate) fn counted_from(&mut self, first: usize) -> Tile<'_> {
        assert!(first <= self.rows.start, "the tile lies below row {first}");
        Tile {
            // SAFETY: `first` is at most the tile's first row, and `Matrix::tile` checked that the
            // tile lies in the matrix, so row `first` begins in it or at its end.
            base: unsafe { self.base.add(first * self.row_len) },
            row_len: self.row_len,
            rows: self.rows.start - first..self.rows.end - first,
            cols: self.cols.clone(),
            out: PhantomData,
        }
    }

    /// The tile's columns of row `r`, which counts from the top of the whole matrix.
    ///
    /// # Panics
    /// If `r` is not in [`Tile::rows`].
    pub fn row(&mut self, r: usize) -> &mut [f32] {
        assert!(self.rows.contains(&r), "row {r} is outside of the tile");
        // SAFETY: `Matrix::tile` checked that rows and cols lie in the matrix, which stays borrowed
        // mutably while tiles exist; its caller promised that tiles are disjoint, and `&mut self`
        // keeps two slices of one tile from existing at once.
        unsafe {
            let start = self.base.add(r * self.row_len + self.cols.start);
            std::slice::from_raw_parts_mut(start, self.cols.len())
        }
    }
}

/// A pointer that tasks on other threads may offset.
struct SendPtr<T>(*mut T);

impl<T> SendPtr<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: the pointer comes from a `&mut [T]` with T: Send whose parts are handed to one thread
// each; see the uses above.
unsafe impl<T: Send> Sync for SendPtr<T> {}
