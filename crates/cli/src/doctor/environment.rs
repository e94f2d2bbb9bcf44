//! Variables that hide GPUs, renumber them, or change what a driver says about them.
//!
//! AMD's runtime filters twice: `ROCR_VISIBLE_DEVICES` leaves some GPUs, and `HIP_VISIBLE_DEVICES` (else
//! `CUDA_VISIBLE_DEVICES`) chooses among those, counted from 0. `hip:N` is a number after both.

use super::report::{Check, Status};

/// The variables, and what each does.
pub const VARIABLES: [(&str, &str); 7] = [
    (
        "ROCR_VISIBLE_DEVICES",
        "HIP has only these GPUs, numbers or UUIDs",
    ),
    (
        "HIP_VISIBLE_DEVICES",
        "HIP shows only these of the GPUs that it has, and counts them from 0",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        "CUDA shows only these GPUs, and so does HIP without HIP_VISIBLE_DEVICES",
    ),
    (
        "GPU_DEVICE_ORDINAL",
        "OpenCL, and HIP of some versions, show only these GPUs",
    ),
    (
        "HSA_OVERRIDE_GFX_VERSION",
        "an AMD GPU runs the machine code of another one",
    ),
    ("ROCM_PATH", "HIP is looked for there first"),
    ("LD_LIBRARY_PATH", "the dynamic linker looks there first"),
];

/// Lists the variables that are set, with what they do.
pub fn environment(get: impl Fn(&str) -> Option<String>) -> Check {
    const NAME: &str = "environment";
    let set = VARIABLES
        .iter()
        .filter_map(|(name, does)| Some(format!("{name}={} ({does})", get(name)?)));
    let list: Vec<String> = set.collect();
    if list.is_empty() {
        return Check::new(NAME, Status::Ok, "no variable hides or renames GPUs");
    }
    let list = list.join("; ");
    if let Some(advice) = hidden(&get) {
        return Check::new(NAME, Status::Warning, list).advice(advice);
    }
    match get("HSA_OVERRIDE_GFX_VERSION") {
        Some(_) => Check::new(NAME, Status::Warning, list).advice(
            "HSA_OVERRIDE_GFX_VERSION makes a GPU run the machine code of another one, with wrong results if they \
             differ: unset it",
        ),
        None => Check::new(NAME, Status::Ok, list),
    }
}

/// Returns a sentence about a variable that hides all GPUs of a vendor.
fn hidden(get: impl Fn(&str) -> Option<String>) -> Option<String> {
    let value = |name: &str| Some(get(name)?.trim().to_string());
    let hides = |name: &str, whose: &str| format!("{name} hides all GPUs {whose}: unset {name}");
    let rocr = value("ROCR_VISIBLE_DEVICES");
    if rocr.as_deref().is_some_and(|list| n_visible(list) == 0) {
        return Some(hides("ROCR_VISIBLE_DEVICES", "of AMD"));
    }
    let cuda = value("CUDA_VISIBLE_DEVICES");
    if cuda.as_deref().is_some_and(|list| n_visible(list) == 0) {
        return Some(hides(
            "CUDA_VISIBLE_DEVICES",
            "of NVIDIA, and may hide those of AMD",
        ));
    }
    for name in [
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
    ] {
        // HIP takes an empty list as none.
        let Some(list) = value(name).filter(|list| !list.is_empty()) else {
            continue;
        };
        if n_visible(&list) == 0 {
            return Some(hides(name, "of AMD"));
        }
        let n_left = rocr.as_deref().map(n_visible);
        let first = list
            .split(',')
            .next()
            .and_then(|n| n.trim().parse::<usize>().ok());
        if let (Some(n_left), Some(first)) = (n_left, first)
            && first >= n_left
        {
            return Some(format!(
                "{name} counts among the GPUs that ROCR_VISIBLE_DEVICES leaves: {n_left}, from 0, so that {first} is none of \
                 them and all are hidden; unset one of both"
            ));
        }
        break;
    }
    None
}

/// The number of GPUs in a list. The first entry that can be none ends it.
fn n_visible(list: &str) -> usize {
    let entries = list.split(',').map(str::trim);
    entries
        .take_while(|entry| !entry.is_empty() && !entry.starts_with('-') && *entry != "NoDevFiles")
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Check {
        environment(|asked| {
            let (_, value) = variables.iter().find(|(name, _)| *name == asked)?;
            Some((*value).to_string())
        })
    }

    #[test]
    fn says_what_variables_do() {
        assert_eq!(with(&[]).status, Status::Ok);
        let check = with(&[("HIP_VISIBLE_DEVICES", "1"), ("ROCM_PATH", "/opt/rocm")]);
        assert_eq!(check.status, Status::Ok);
        assert_eq!(
            check.detail,
            "HIP_VISIBLE_DEVICES=1 (HIP shows only these of the GPUs that it has, and counts them from 0); \
             ROCM_PATH=/opt/rocm (HIP is looked for there first)"
        );
    }

    #[test]
    fn variables_that_hide_all_gpus_are_named() {
        let (rocr, hip, cuda) = (
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "CUDA_VISIBLE_DEVICES",
        );
        for (variables, expected) in [
            (
                &[(hip, "-1")][..],
                "HIP_VISIBLE_DEVICES hides all GPUs of AMD",
            ),
            (&[(rocr, "")], "ROCR_VISIBLE_DEVICES hides all GPUs of AMD"),
            (
                &[(cuda, "")],
                "CUDA_VISIBLE_DEVICES hides all GPUs of NVIDIA",
            ),
            (
                &[(cuda, "NoDevFiles")],
                "CUDA_VISIBLE_DEVICES hides all GPUs",
            ),
            (
                &[(rocr, "1"), (hip, "1")],
                "HIP_VISIBLE_DEVICES counts among the GPUs",
            ),
            (
                &[(rocr, "0,-1,2"), (cuda, "1")],
                "CUDA_VISIBLE_DEVICES counts among the GPUs",
            ),
            (
                &[("HSA_OVERRIDE_GFX_VERSION", "11.0.0")],
                "HSA_OVERRIDE_GFX_VERSION makes",
            ),
        ] {
            let check = with(variables);
            assert_eq!(check.status, Status::Warning, "{variables:?}");
            let advice = check.advice.unwrap();
            assert!(advice.starts_with(expected), "{variables:?}: {advice}");
        }
        for variables in [
            &[(hip, "0")][..],
            // HIP takes it as not set.
            &[(hip, "")],
            &[(rocr, "1"), (hip, "0")],
            &[(rocr, "GPU-5fd1,GPU-77aa"), (hip, "1")],
            // HIP's own variable goes before CUDA's.
            &[(rocr, "1"), (hip, "0"), (cuda, "1")],
        ] {
            assert_eq!(with(variables).status, Status::Ok, "{variables:?}");
        }
    }
}
