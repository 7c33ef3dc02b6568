"""Charts: what simulations and reports draw, as values, as SVG and as PNG."""
