"""`doubledecker receiver`, `subscribe` and `unsubscribe`."""
