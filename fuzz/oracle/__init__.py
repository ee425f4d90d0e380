"""Every formula in float64, from docs/formulas.md, without a line of the package."""
