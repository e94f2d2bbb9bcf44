//! Generations of AMD GPUs whose machine code follows the same rules.

/// Targets with the same rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// gfx906.
    Vega20,
    /// gfx908.
    Cdna1,
    /// gfx90a.
    Cdna2,
    /// gfx942.
    Cdna3,
    /// gfx950.
    Cdna4,
    /// gfx1030 to gfx1036.
    Rdna2,
    /// gfx1100 to gfx1103.
    Rdna3,
    /// gfx1150 to gfx1153.
    Rdna35,
    /// gfx1200 and gfx1201.
    Rdna4,
}

impl Family {
    /// Returns the family of a target.
    ///
    /// # Errors
    /// If the rules of the target are not known.
    pub(crate) fn of(target: &str) -> Result<Family, String> {
        Ok(match target {
            "gfx906" => Family::Vega20,
            "gfx908" => Family::Cdna1,
            "gfx90a" => Family::Cdna2,
            "gfx942" => Family::Cdna3,
            "gfx950" => Family::Cdna4,
            _ if target.starts_with("gfx103") => Family::Rdna2,
            _ if target.starts_with("gfx110") => Family::Rdna3,
            _ if target.starts_with("gfx115") => Family::Rdna35,
            _ if target.starts_with("gfx120") => Family::Rdna4,
            _ => {
                return Err(format!(
                    "the rules of machine code for {target} are not known"
                ));
            }
        })
    }

    /// Whether it is of gfx9, where waves have 64 lanes.
    pub(crate) fn is_gfx9(self) -> bool {
        matches!(
            self,
            Family::Vega20 | Family::Cdna1 | Family::Cdna2 | Family::Cdna3 | Family::Cdna4
        )
    }

    /// Whether it is gfx942 or gfx950.
    pub(crate) fn is_gfx940(self) -> bool {
        matches!(self, Family::Cdna3 | Family::Cdna4)
    }

    /// Whether the 512 registers of a lane serve vector and matrix instructions alike.
    pub(crate) fn has_one_register_file(self) -> bool {
        self == Family::Cdna2 || self.is_gfx940()
    }
}
