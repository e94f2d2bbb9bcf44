//! From f32 rows to blocks of any format: what `quantize` runs for each tensor.
//! Checks the values, then hands each block with its importance to the format.

use super::{GgmlType, check_lengths, conversions, unsupported};
use crate::error::Error;

/// Whether [`quantize_rows`] handles this type.
pub fn can_quantize(ty: GgmlType) -> bool {
    conversions(ty).fit.is_some()
}

/// Quantizes `src` `[n_rows, row_len]` to whole blocks in `dst` and searches for
/// the scales with the least error, weighted by `importance` `[row_len]`: for
/// each column the mean square of the activations it meets (any unit).
/// Without, large values count more than small ones.
///
/// # Errors
/// If there is no quantizer to the type, lengths do not match, a value is not
/// finite or too large for the type, or a weight is negative or not finite. `dst`
/// is unspecified then.
pub fn quantize_rows(
    ty: GgmlType,
    src: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), Error> {
    let fit = conversions(ty)
        .fit
        .ok_or_else(|| unsupported("quantizing to", ty, |c| c.fit.is_some()))?;
    if !row_len.is_multiple_of(ty.block_len()) || !src.len().is_multiple_of(row_len) {
        return Err(Error::NotWholeRows {
            ty: ty.name(),
            values: src.len(),
            row_len,
            block_len: ty.block_len(),
        });
    }
    check_lengths(ty, dst.len(), src.len())?;
    if let Some(importance) = importance {
        check_importance(importance, row_len)?;
    }
    check_values(ty, src, row_len)?;
    fit(src, row_len, importance, dst);
    Ok(())
}

fn check_importance(importance: &[f32], row_len: usize) -> Result<(), Error> {
    if importance.len() != row_len {
        return Err(Error::ImportanceLength {
            found: importance.len(),
            row_len,
        });
    }
    let sane = |x: &f32| (0.0..=f32::MAX).contains(x);
    match importance.iter().position(|x| !sane(x)) {
        None => Ok(()),
        Some(column) => Err(Error::Importance {
            column,
            value: importance[column],
        }),
    }
}

fn check_values(ty: GgmlType, src: &[f32], row_len: usize) -> Result<(), Error> {
    let limit = largest(ty);
    let fits = |x: &f32| x.abs() <= limit;
    // The fold has no early exit, so that it compiles to vector code.
    if src.iter().fold(true, |ok, x| ok & fits(x)) {
        return Ok(());
    }
    let at = src.iter().position(|x| !fits(x)).expect("one did not fit");
    Err(Error::Unrepresentable {
        ty: ty.name(),
        row: at / row_len,
        column: at % row_len,
        value: src[at],
    })
}

/// The largest magnitude that is accepted: what rounds to a finite number, and for
/// formats with scales in half precision what any of them can hold.
fn largest(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::F32 | GgmlType::MXFP4 => f32::MAX,
        GgmlType::BF16 => f32::from_bits(0x7f7f_7fff),
        GgmlType::F16 => 65520.0f32.next_down(),
        _ => 65504.0,
    }
}
