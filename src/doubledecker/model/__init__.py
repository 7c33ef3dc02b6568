"""What the product talks about: events, subscribers, jobs, and the pure rules between them."""
