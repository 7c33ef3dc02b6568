"""`doubledecker report`: what the measures say, in the terminal and as a page."""
