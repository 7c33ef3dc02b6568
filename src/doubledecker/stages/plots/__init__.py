"""Plots: a chart is a value; it is drawn as SVG here, as PNG with matplotlib, and in a terminal by the command line."""
