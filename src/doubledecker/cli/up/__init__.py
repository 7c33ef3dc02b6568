"""`doubledecker up`: the whole bus on one machine, and its live view."""
