//! Splits an output matrix into disjoint parts for the tasks of a dispatch.

use std::marker::PhantomData;
use std::ops::Range;

use super::Pool;

impl Pool {
    /// Splits `out` [n_rows, row_len] into runs of `rows_per_task` rows and calls `f(first_row, rows)` for each run;
    /// `rows` holds whole rows.
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

    /// Splits `outs`, matrices with the same number of rows, into tiles of `rows_per_task` rows by `cols_per_task`
    /// columns and calls `f(i, tile)` for each tile of matrix `i`. Tasks cover all rows of a column range before the
    /// next range, so that weights (one row per output column) stay in cache.
    ///
    /// # Panics
    /// If an output is not whole rows, the numbers of rows differ, or a tile size is 0.
    pub fn for_each_tile(
        &self,
        outs: Vec<MatrixMut<'_>>,
        rows_per_task: usize,
        cols_per_task: usize,
        f: &(dyn Fn(usize, &mut Tile<'_>) + Sync),
    ) {
        assert!(
            rows_per_task > 0 && cols_per_task > 0,
            "a tile is not empty"
        );
        let outs = outs.into_iter();
        let matrices: Vec<Matrix<'_>> = outs
            .map(|out| Matrix::new(out.values, out.row_len))
            .collect();
        let n_rows = matrices.first().map_or(0, |matrix| matrix.n_rows);
        assert!(
            matrices.iter().all(|matrix| matrix.n_rows == n_rows),
            "outputs have the same number of rows"
        );
        if n_rows == 0 {
            return;
        }
        let rows_per_task = rows_per_task.min(n_rows);
        let n_row_tiles = n_rows.div_ceil(rows_per_task);
        let n_tasks = |matrix: &Matrix<'_>| n_row_tiles * matrix.row_len.div_ceil(cols_per_task);
        self.run(matrices.iter().map(n_tasks).sum(), &|task| {
            let (mut i, mut task) = (0, task);
            while task >= n_tasks(&matrices[i]) {
                task -= n_tasks(&matrices[i]);
                i += 1;
            }
            let matrix = &matrices[i];
            let first_row = task % n_row_tiles * rows_per_task;
            let first_col = task / n_row_tiles * cols_per_task;
            let rows = first_row..(first_row + rows_per_task).min(n_rows);
            let cols = first_col..first_col.saturating_add(cols_per_task).min(matrix.row_len);
            // SAFETY: different tasks have different matrices, each of them borrowed mutably, or
            // different row or column ranges of one.
            f(i, &mut unsafe { matrix.tile(rows, cols) });
        });
    }

    /// Splits each of `row_ranges` of `out` [n_rows, row_len] by `cols_per_task` columns and calls `f(i, tile)` for
    /// each part of range `i`. Tasks cover all columns of a range before the next range, so the costliest range should
    /// come first. Rows in no range are left alone.
    ///
    /// # Panics
    /// If `out` is not whole rows, `cols_per_task` is 0, or ranges overlap or extend past the matrix.
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

/// An output matrix [n_rows, row_len].
pub struct MatrixMut<'a> {
    /// Row-major.
    pub values: &'a mut [f32],
    pub row_len: usize,
}

/// An output matrix to be split into tiles.
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

/// A rectangle of an output matrix, owned by one task.
pub struct Tile<'a> {
    base: *mut f32,
    row_len: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    out: PhantomData<&'a mut [f32]>,
}

impl Tile<'_> {
    /// Rows of the matrix that this tile covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the matrix that this tile covers.
    pub fn cols(&self) -> Range<usize> {
        self.cols.clone()
    }

    /// Views `values` [rows, cols] as a tile of a larger matrix that is not stored.
    ///
    /// # Panics
    /// If `values` has the wrong length.
    pub(crate) fn of<'a>(
        values: &'a mut [f32],
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Tile<'a> {
        assert_eq!(
            values.len(),
            rows.len() * cols.len(),
            "values are [rows, cols]"
        );
        Tile {
            // `row` adds this offset again.
            base: values
                .as_mut_ptr()
                .wrapping_sub(rows.start * cols.len() + cols.start),
            row_len: cols.len(),
            rows,
            cols,
            out: PhantomData,
        }
    }

    /// The same tile, relative to the matrix that begins with row `first` of this one.
    ///
    /// # Panics
    /// If the tile begins above `first`.
    pub(crate) fn counted_from(&mut self, first: usize) -> Tile<'_> {
        assert!(first <= self.rows.start, "the tile lies below row {first}");
        Tile {
            base: self.base.wrapping_add(first * self.row_len),
            row_len: self.row_len,
            rows: self.rows.start - first..self.rows.end - first,
            cols: self.cols.clone(),
            out: PhantomData,
        }
    }

    /// Returns the tile's columns of row `r`, counted from the top of the matrix.
    ///
    /// # Panics
    /// If `r` is not in [`Tile::rows`].
    pub fn row(&mut self, r: usize) -> &mut [f32] {
        assert!(self.rows.contains(&r), "row {r} is outside of the tile");
        let start = self.base.wrapping_add(r * self.row_len + self.cols.start);
        // SAFETY: `Matrix::tile` checked that rows and cols lie in the matrix, `Tile::of` that they
        // are its values; these stay borrowed mutably while tiles exist. The caller of the first
        // promised that tiles are disjoint, and `&mut self` keeps two slices of one tile from
        // existing at once.
        unsafe { std::slice::from_raw_parts_mut(start, self.cols.len()) }
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
