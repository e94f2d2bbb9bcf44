//! Quantizes rows of f32 to blocks of any supported format. Validates the values, then fits each block with its
//! importance weights.

use super::{GgmlType, check_lengths, conversions, unsupported};
use crate::error::Error;

/// Whether [`quantize_rows`] supports this type.
pub fn can_quantize(ty: GgmlType) -> bool {
    conversions(ty).fit.is_some()
}

/// Quantizes `src` `[n_rows, row_len]` to whole blocks in `dst`, searching for the scales with the least error.
/// `importance` `[row_len]` weights the error by column: the mean square of the activations of that column, in any
/// unit. Without it, large values count more than small ones.
///
/// # Errors
/// If there is no quantizer for the type, lengths do not match, a value is not finite or too large for the type, or a
/// weight is negative or not finite. The content of `dst` is then unspecified.
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
    // The fold has no early exit, so that it vectorizes.
    if src.iter().fold(true, |ok, x| ok & fits(x)) {
        return Ok(());
    }
    let at = src
        .iter()
        .position(|x| !fits(x))
        .expect("a value did not fit");
    Err(Error::Unrepresentable {
        ty: ty.name(),
        row: at / row_len,
        column: at % row_len,
        value: src[at],
    })
}

/// The largest accepted magnitude: it rounds to a finite number, and formats with f16 scales can all represent it.
fn largest(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::F32 | GgmlType::MXFP4 => f32::MAX,
        GgmlType::BF16 => f32::from_bits(0x7f7f_7fff),
        GgmlType::F16 => 65520.0f32.next_down(),
        // Six times the largest scale.
        GgmlType::NVFP4 => 2688.0,
        _ => 65504.0,
    }
}
