"""`doubledecker report`: the measures, in the terminal and as a page."""
